"""A BytePS worker that resumes from a checkpoint of another step than the other worker, and prints the error."""

import torch

import byteps_thc.torch as bps
from byteps_thc._base.errors import ThcError
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.saved_state import sealed

torch.set_num_threads(1)

bps.init()
weight = torch.nn.Parameter(torch.zeros(100_000))
compression = bps.Compression.thc(policy=CompressionPolicy(deadline_s=60))
optimizer = bps.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), [("weight", weight)], compression)


def step():
    optimizer.zero_grad()
    (weight - 1 - bps.rank()).square().sum().backward()
    optimizer.step()


step()
state = optimizer.compression_state_dict()
optimizer.load_compression_state_dict(sealed(state | {"round": state["round"] + 7 * bps.rank()}))
try:
    step()
except ThcError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
    raise SystemExit(3) from None
