"""A BytePS worker that trains with THC until an error, and prints it. Argument: a deadline in seconds, by default 5."""

import sys
import time

import torch

import byteps_thc.torch as bps
from byteps_thc._base.errors import ThcError
from byteps_thc._engine.policy import CompressionPolicy

torch.set_num_threads(1)
LONGEST_S = 60.0

deadline_s = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
bps.init()
weight = torch.nn.Parameter(torch.zeros(100_000))
compression = bps.Compression.thc(policy=CompressionPolicy(deadline_s=deadline_s))
optimizer = bps.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), [("weight", weight)], compression)
end = time.monotonic() + LONGEST_S
step = 0
while time.monotonic() < end:
    optimizer.zero_grad()
    started = time.monotonic()
    try:
        (weight - bps.rank()).square().sum().backward()
        optimizer.step()
    except ThcError as error:
        print(f"{type(error).__name__} after {time.monotonic() - started:.1f} s: {error}", flush=True)
        raise SystemExit(3) from None
    step += 1
    if step == 3:
        print("three steps", flush=True)
