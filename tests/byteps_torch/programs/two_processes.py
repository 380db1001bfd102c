"""One of the two processes of a BytePS worker (two GPUs of a host): everything but THC works as with one."""

import torch

import byteps_thc.torch as bps

torch.set_num_threads(1)
ROUNDS = 5


def check_push_pull():
    for number in range(1, ROUNDS + 1):
        total = bps.push_pull(torch.full((1000,), float(number * (bps.rank() + 1))), average=False, name="sum")
        assert torch.equal(total, torch.full((1000,), 10.0 * number))


def check_broadcasts(weight):
    bps.broadcast_parameters([("weight", weight)], root_rank=1)
    assert torch.equal(weight, torch.ones(3000))
    optimizer = torch.optim.Adam([weight])
    if bps.rank() == 0:
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.state_dict()["state"][0]["step"] == 1


def check_training():
    for compression in (bps.Compression.none, bps.Compression.fp16):
        # A new weight: hooks of the optimizer before would average a common one's gradient in place at the same time.
        weight = torch.nn.Parameter(torch.ones(3000))
        plain = torch.optim.SGD([weight], lr=1.0)
        optimizer = bps.DistributedOptimizer(plain, [(compression.__name__, weight)], compression)
        optimizer.zero_grad()
        (weight * (bps.rank() + 1)).sum().backward()
        optimizer.step()
        assert torch.equal(weight, torch.full((3000,), 1.0 - 2.5))


bps.init()
assert (bps.size(), bps.local_size()) == (4, 2)
assert bps.rank() % 2 == bps.local_rank()
weight = torch.nn.Parameter(torch.full((3000,), float(bps.rank())))
check_push_pull()
check_broadcasts(weight)
check_training()
bps.shutdown()
