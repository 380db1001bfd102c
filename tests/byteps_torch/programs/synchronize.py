"""Workers whose parameters and optimizer states are not the same, and are made so by byteps_thc's synchroniser."""

import copy
import logging
import sys
from pathlib import Path

import torch
from error_of import error_of

import byteps_thc.torch as bps
from byteps_thc import ParameterSynchronizer, synchronize_parameters

torch.set_num_threads(1)


def contents(model, optimizer):
    return copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})


folder = Path(sys.argv[1])
logging.basicConfig(level=logging.INFO)
bps.init()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(60, 60), torch.nn.BatchNorm1d(60))
plain = torch.optim.Adam(model.parameters(), lr=0.1)
compression = bps.Compression.thc(loss_tolerant=True, quorum=0.9)
optimizer = bps.DistributedOptimizer(plain, model.named_parameters(), compression=compression)
synchronizer = ParameterSynchronizer(model, optimizer, synchronize_every=2)
done = []
for step in range(4):
    random = torch.Generator().manual_seed(10 * step + bps.rank())
    optimizer.zero_grad()
    model(torch.randn(8, 60, generator=random)).square().mean().backward()
    optimizer.step()
    if bps.rank() == 1:
        with torch.no_grad():
            model[0].weight += 1.0
    if step == 3:
        before = contents(model, optimizer)
    done.append(synchronizer.step())
after = contents(model, optimizer)
errors = {
    "every": error_of(lambda: ParameterSynchronizer(model, optimizer, synchronize_every=2 + bps.rank())),
    "model": error_of(lambda: synchronize_parameters(torch.nn.Linear(4, 4 + bps.rank()), optimizer)),
}
report = {"before": before, "after": after, "done": done, "errors": errors}
torch.save(report, folder / f"synchronized{bps.rank()}.pt")
optimizer.close_compression()
bps.shutdown()
