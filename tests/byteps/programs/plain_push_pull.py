"""A worker that uses byteps.torch alone: sums of every dtype that it supports."""

import byteps.torch as bps
import torch

DTYPES = (torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)

bps.init()
rank, size = bps.rank(), bps.size()
for dtype in DTYPES:
    tensor = torch.arange(100).to(dtype) + rank
    handle = bps.byteps_push_pull(tensor, average=False, name=str(dtype))
    expected = (size * torch.arange(100) + sum(range(size))).to(dtype)
    assert torch.equal(bps.synchronize(handle), expected), dtype
subnormal = torch.tensor([1e-40])  # BytePS is compiled with -Ofast; our code must not lose subnormal numbers by it
assert (subnormal * 0.5).item() > 0
print(f"worker {rank} of {size}: sums are right")
