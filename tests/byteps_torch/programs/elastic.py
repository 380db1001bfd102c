"""A BytePS worker that suspends BytePS between two parts of its training and resumes it, THC on BytePS's servers."""

import torch

import byteps_thc.torch as bps

torch.set_num_threads(1)


def step_of(weight, compression):
    """Take a step; the gradient is 1 on one worker and 3 on the other."""
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)], compression)
    optimizer.zero_grad()
    (weight * (1.0 + 2 * bps.rank())).sum().backward()
    optimizer.step()
    optimizer.close_compression()
    return weight.detach().clone()


def train(weight):
    for number in range(3):
        assert torch.equal(
            bps.push_pull(torch.ones(500) * number, average=False, name="sum"), torch.ones(500) * 2 * number
        )
    step_of(weight, bps.Compression.none)
    return step_of(weight, bps.Compression.thc(route="servers"))


bps.init()
rank, size = bps.rank(), bps.size()
weight = torch.nn.Parameter(torch.zeros(5000))
before = train(weight)
bps.suspend()
print("suspended", flush=True)
bps.resume(size, 1, rank)
after = train(weight)
assert abs(before.mean().item() + 4) < 0.05
assert abs(after.mean().item() + 8) < 0.1
bps.shutdown()
