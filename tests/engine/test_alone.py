"""A world of one compresses nothing. Its engine refuses buffers with a reason, as all engines do."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ThcError
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice
from byteps_thc.ddp import ThcState, compress


@pytest.fixture
def ddp() -> Iterator[DistributedDataParallel]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield DistributedDataParallel(nn.Linear(64, 64))
    dist.destroy_process_group()


@pytest.fixture
def state(ddp: DistributedDataParallel) -> Iterator[ThcState]:
    state = compress(ddp)
    yield state
    state.close()


def gradient_of(model: nn.Module, weight: nn.Parameter) -> Tensor:
    weight.grad = None
    model(torch.ones(4, 64)).square().mean().backward()
    assert weight.grad is not None
    return weight.grad


@pytest.mark.usefixtures("state")
def test_gradients_stay_as_they_are(ddp: DistributedDataParallel) -> None:
    assert torch.equal(gradient_of(ddp, ddp.module.weight), gradient_of(ddp.module, ddp.module.weight))


@pytest.mark.parametrize(
    ("gradient", "slices", "words"),
    [
        (torch.zeros(4, dtype=torch.float64), (), "float64, not float32"),
        (torch.zeros(2, 2), (), "1-D"),
        (torch.zeros(4), (ParameterSlice("a", 0, 3), ParameterSlice("b", 2, 4)), "ascending and disjoint"),
    ],
)
def test_wrong_buffers_are_refused(
    state: ThcState, gradient: Tensor, slices: tuple[ParameterSlice, ...], words: str
) -> None:
    with pytest.raises(ThcError, match=words):
        state.engine.all_reduce(GradientBuffer("wrong", gradient, slices))
