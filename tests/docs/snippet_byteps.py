"""A BytePS worker that runs a script of the documents (the file in argv) and trains a step with its optimizers."""

import math
import runpy
import sys

import torch

torch.manual_seed(0)
names = runpy.run_path(sys.argv[1], run_name="__main__")
bps, model = names["bps"], names["model"]
optimizers = names["optimizers"] if "optimizers" in names else [names["optimizer"]]
model(torch.randn(8, 1000)).square().mean().backward()
for optimizer in optimizers:
    optimizer.step()
    stats = optimizer.compression_stats()
    assert stats.coordinates >= 1_000_000
    assert stats.ratio > 7
    assert 0 < stats.clamped_fraction < 0.1
    assert math.isnan(stats.nmse), "no residuals are kept by default"
print(f"rank {bps.rank()} parameters {sum(float(p.detach().double().sum()) for p in model.parameters())!r}")
for optimizer in optimizers:
    optimizer.close_compression()
bps.shutdown()
