"""One of two BytePS workers that use byteps.torch without THC. Argument: the file for values that the test compares."""

import copy
import os
import sys
from pathlib import Path

import torch

import byteps_thc.torch as bps
from byteps_thc._base.errors import ConfigurationError, InputError

torch.set_num_threads(1)
BACK_TO_BACK = 20
DTYPES = [torch.float32, torch.float16, torch.float64, torch.int32, torch.int64, torch.uint8]


def raises(error, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except error as raised:
        return str(raised)
    raise AssertionError(f"{function} did not raise {error.__name__}")


def check_ranks():
    assert bps.size() == 2
    assert bps.rank() == int(os.environ["DMLC_WORKER_ID"])
    assert (bps.local_size(), bps.local_rank()) == (1, 0)


def check_push_pull():
    bps.declare("declared")
    pushed = []
    for dtype in DTYPES:
        mine = (torch.arange(1, 8) * (bps.rank() + 1)).to(dtype)
        total = (torch.arange(1, 8) * 3).to(dtype)
        average = total / 2 if dtype.is_floating_point else total // 2
        kept = mine.clone()
        pushed.append((bps.push_pull_async(mine, name=f"average.{dtype}"), average, mine, kept))
        pushed.append((bps.push_pull_async(mine, average=False, name=f"sum.{dtype}"), total, mine, kept))
        own = mine.clone()
        pushed.append((bps.push_pull_async_inplace(own, name=f"inplace.{dtype}"), average, own, average))
    for handle, wanted, source, source_after in pushed:
        assert torch.equal(bps.synchronize(handle), wanted)
        assert torch.equal(source, source_after)
    own = torch.ones(3)
    assert bps.push_pull_inplace(own, average=False, name="inplace") is own
    assert torch.equal(own, torch.full((3,), 2.0))
    half = bps.push_pull(torch.full((5,), 1.0 + bps.rank()), name="half", compression=bps.Compression.fp16)
    assert torch.equal(half, torch.full((5,), 1.5))
    handle = bps.push_pull_async(torch.tensor([5.0 + 2 * bps.rank()]))
    second = bps.push_pull_async(torch.ones(1000), average=False)  # unnamed too, and of another size
    assert bps.synchronize(handle).item() == 6.0
    assert bps.poll(handle)
    assert bps.synchronize(handle).item() == 6.0
    assert torch.equal(bps.synchronize(second), torch.full((1000,), 2.0))


def check_back_to_back_rounds():
    """One name, the next push as soon as the last one has ended: BytePS's own server loses sums here."""
    for number in range(BACK_TO_BACK):
        tensor = torch.full((50_000,), float(number * (bps.rank() + 1)))
        assert torch.equal(bps.push_pull(tensor, average=False, name="same"), torch.full((50_000,), 3.0 * number))


def check_gradient_of_push_pull():
    leaf = torch.full((4,), 1.0 + bps.rank(), requires_grad=True)
    total = bps.push_pull(leaf, average=False, name="differentiable")
    (total * (bps.rank() + 1)).sum().backward()
    assert torch.equal(leaf.grad, torch.full((4,), 3.0))


def check_push_pull_errors():
    raises(InputError, bps.push_pull, torch.ones(3))
    assert "BFloat16" in raises(InputError, bps.push_pull, torch.ones(3, dtype=torch.bfloat16), name="bf16")
    raises(InputError, bps.push_pull_inplace, torch.ones(3, 2).t(), name="strided")
    raises(InputError, bps.push_pull_inplace, torch.ones(0), name="empty")
    assert "before" in raises(InputError, bps.push_pull, torch.ones(3), name="same")
    thc = bps.Compression.thc(servers=["127.0.0.1"])
    raises(ConfigurationError, bps.push_pull, torch.ones(3), name="thc", compression=thc)


def bits(tensor):
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def tensors_to_broadcast():
    odd = torch.tensor([float("nan"), -0.0, float("inf"), 1e-45])
    tensors = {f"{dtype}": torch.arange(5).to(dtype) + 1 for dtype in [*DTYPES, torch.bfloat16, torch.complex64]}
    return tensors | {
        "odd": odd,
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0),
        "strided": torch.arange(6.0).reshape(2, 3).t(),
        "parameter": torch.nn.Parameter(torch.ones(3)),
    }


def check_broadcast_parameters():
    wanted = tensors_to_broadcast()
    given = wanted if bps.rank() == 1 else {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    bps.broadcast_parameters(given | {"not a tensor": "text"}, root_rank=1)
    for name, tensor in given.items():
        assert torch.equal(bits(tensor), bits(wanted[name])), name
    pair = [torch.full((3,), float(bps.rank())), torch.full((2,), float(bps.rank()))]
    bps.broadcast_parameters(pair, root_rank=1)
    assert all(bool((tensor == 1).all()) for tensor in pair)
    raises(InputError, bps.broadcast_parameters, torch.ones(3), root_rank=0)


def optimizers(parameters):
    """Every kind of state: none, tensors, steps as tensors or numbers, lists, tuples and None."""
    return {
        "SGD": torch.optim.SGD(parameters, lr=0.1),
        "Adam": torch.optim.Adam(parameters, lr=torch.tensor(0.01), amsgrad=True, betas=(0.8, 0.95)),
        "ASGD": torch.optim.ASGD(parameters),
        "Adafactor": torch.optim.Adafactor(parameters),
        "LBFGS": torch.optim.LBFGS(parameters, max_iter=3),
    }


def check_broadcast_optimizer_state():
    """The root has taken steps, the other has not: afterwards both have the root's state."""
    states = {}
    parameters = [torch.nn.Parameter(torch.ones(20, 30)), torch.nn.Parameter(torch.ones(7))]
    for name, optimizer in optimizers(parameters).items():

        def closure():
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, 0.5)
            return torch.tensor(1.0)

        if bps.rank() == 0:
            optimizer.step(closure)
            optimizer.step(closure)
            optimizer.param_groups[0]["lr"] = 0.125
        bps.broadcast_optimizer_state(optimizer, root_rank=0, prefix=f"{name}.")
        assert optimizer.param_groups[0]["lr"] == 0.125
        states[name] = copy.deepcopy(optimizer.state_dict())
        optimizer.step(closure)  # works with the received state
    return states


def model_and_optimizer(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3))
    groups = [{"params": model[0].parameters(), "lr": 0.05}, {"params": model[2].parameters()}]
    return model, torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def loss_of(model, step, rank):
    torch.manual_seed(1000 * step + rank)
    return model(torch.randn(16, 30)).square().mean()


def check_training(compression):
    """Compare bits with one process that has the average of both gradients."""
    model, plain = model_and_optimizer(seed=1)
    reference, reference_optimizer = model_and_optimizer(seed=1)
    named = [(f"{compression.__name__}.{name}", parameter) for name, parameter in model.named_parameters()]
    optimizer = bps.DistributedOptimizer(plain, named, compression=compression)
    assert isinstance(optimizer, torch.optim.SGD)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    reference_scheduler = torch.optim.lr_scheduler.StepLR(reference_optimizer, 2, 0.5)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, step, bps.rank()).backward()
        gradients = []
        for rank in range(2):
            reference_optimizer.zero_grad()
            loss_of(reference, step, rank).backward()
            gradients.append([p.grad.clone() for p in reference.parameters()])
        for parameter, first, second in zip(reference.parameters(), *gradients, strict=True):
            if compression is bps.Compression.fp16:
                parameter.grad = ((first.half() + second.half()) / 2).float()
            else:
                parameter.grad = (first + second) / 2
        if step == 2:  # BytePS's way to clip
            optimizer.synchronize()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            assert norm == torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.01)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        reference_optimizer.step()
        scheduler.step()
        reference_scheduler.step()
        for parameter, wanted in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.equal(parameter, wanted)
    reference_optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.compression_state_dict() == {}
    stats = optimizer.compression_stats()
    assert stats.steps == 4
    assert stats.ratio == (2 if compression is bps.Compression.fp16 else 1)


def check_accumulation_and_unused():
    used = torch.nn.Parameter(torch.zeros(10))
    unused = torch.nn.Parameter(torch.zeros(5))
    half_used = torch.nn.Parameter(torch.zeros(6, dtype=torch.bfloat16))
    named = [("used", used), ("unused", unused), ("half", half_used)]
    optimizer = torch.optim.SGD([used, unused, half_used], lr=1.0)
    optimizer = bps.DistributedOptimizer(optimizer, named, backward_passes_per_step=2)
    for number in (1.0, 2.0):
        (used * number * (bps.rank() + 1)).sum().backward()
    if bps.rank() == 1:  # one pass instead of two, on one worker alone
        half_used.sum().backward()
    assert "zero_grad" in raises(InputError, optimizer.zero_grad)
    optimizer.step()
    assert torch.equal(used, torch.full((10,), -4.5))
    assert torch.equal(unused, torch.zeros(5))
    assert torch.equal(half_used, torch.full((6,), -0.5, dtype=torch.bfloat16))
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(1)
    assert optimizer.backward_passes_per_step == 1
    used.sum().backward()
    assert "backward_passes_per_step" in raises(InputError, used.sum().backward)
    optimizer.step()
    return optimizer


def check_synchronize_then_step_averages_once():
    """BytePS's documentation forgets skip_synchronize: the clipped gradients must not travel again."""
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("once", weight)])
    (weight * (bps.rank() + 1)).sum().backward()
    optimizer.synchronize()
    weight.grad.add_(float(bps.rank()))  # would be averaged to 2.0 on both
    optimizer.step()
    assert torch.equal(weight, torch.full((3,), -1.5 - bps.rank()))


def check_closure():
    weight = torch.nn.Parameter(torch.full((3,), 2.0))
    optimizer = bps.DistributedOptimizer(torch.optim.LBFGS([weight], lr=0.5, max_iter=4), [("closure", weight)])

    def closure():
        optimizer.zero_grad()
        loss = (weight - 4.0 * bps.rank()).square().sum()
        loss.backward()
        return loss.detach()

    for _ in range(5):
        optimizer.step(closure)
    assert torch.allclose(weight, torch.full((3,), 2.0))  # the minimum of the average of both losses
    return weight.detach()


def check_optimizer_errors():
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    named = [("errors", weight)]
    assert "lacks 1" in raises(ConfigurationError, bps.DistributedOptimizer, optimizer, [])
    raises(ConfigurationError, bps.DistributedOptimizer, optimizer, named, backward_passes_per_step=0)
    os.environ["BYTEPS_ENABLE_ASYNC"] = "1"
    raises(ConfigurationError, bps.DistributedOptimizer, optimizer, named)
    del os.environ["BYTEPS_ENABLE_ASYNC"]
    wrapped = bps.DistributedOptimizer(optimizer, named)
    raises(ConfigurationError, wrapped.add_param_group, {"params": [torch.nn.Parameter(torch.zeros(1))]})
    raises(ConfigurationError, wrapped.load_compression_state_dict, {"round": 3})
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    wrapped = bps.DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=1.0), embedding.named_parameters())
    assert "sparse" in raises(InputError, embedding(torch.tensor([1])).sum().backward)


report = Path(sys.argv[1])
raises(ValueError, bps.size)  # BytePS itself would say 1
bps.init()
check_ranks()
check_push_pull()
check_back_to_back_rounds()
check_gradient_of_push_pull()
check_push_pull_errors()
check_broadcast_parameters()
states = check_broadcast_optimizer_state()
for compression in (bps.Compression.none, bps.Compression.fp16):
    check_training(compression)
check_accumulation_and_unused()
check_synchronize_then_step_averages_once()
minimum = check_closure()
check_optimizer_errors()
torch.save({"states": states, "minimum": minimum}, report / f"surface{bps.rank()}.pt")
bps.shutdown()
