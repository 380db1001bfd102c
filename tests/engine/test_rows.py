"""The engine of a reduce-scatter, in one process: a rank alone has an engine that does all that several do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from byteps_thc import ThcConfig
from byteps_thc._engine.engine import ParameterSlice, ShardMatrix
from byteps_thc._engine.factory import flat_engine
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._engine.policy import CompressionPolicy

COLUMNS = 2048


def matrix(key: str, *names: str) -> ShardMatrix:
    """Return that of a group whose parameters have COLUMNS elements each."""
    parts = [ParameterSlice(name, COLUMNS * place, COLUMNS * (place + 1)) for place, name in enumerate(names)]
    return ShardMatrix(key, 1, COLUMNS * len(names), tuple(parts), parameters=names)


@pytest.fixture
def engine() -> Iterator[FlatEngine]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        group = dist.group.WORLD
        assert group is not None
        policy = CompressionPolicy(bypass_elements=0)
        alone = flat_engine(group, ThcConfig(bits=4), policy, sharded=True)
        yield alone
        alone.close()
    finally:
        dist.destroy_process_group()


def reduce(engine: FlatEngine, rows: ShardMatrix, gradient: torch.Tensor) -> torch.Tensor:
    """Return the average."""
    average = torch.full((rows.columns,), 7.0)
    return engine.reduce_scatter(rows.key, rows, gradient.clone(), average).wait()


def test_one_rank_gets_its_own_gradient(engine: FlatEngine) -> None:
    engine.start_step()
    gradient = torch.randn(COLUMNS, generator=torch.Generator().manual_seed(1))
    average = reduce(engine, matrix("one", "a"), gradient)
    assert (average - gradient).norm() < 0.2 * gradient.norm()


def test_a_group_has_other_parameters_in_a_later_step(engine: FlatEngine) -> None:
    random = torch.Generator().manual_seed(2)
    one, both, less = matrix("one", "a"), matrix("two", "b", "c"), matrix("two without c", "b")
    engine.start_step()
    for rows in (one, both):
        gradient = torch.randn(rows.size, generator=random)
        assert (reduce(engine, rows, gradient) - gradient).norm() < 0.2 * gradient.norm()
    engine.start_step()
    assert reduce(engine, less, torch.full((less.size,), torch.inf)).isnan().all()
    gradient = torch.randn(one.size, generator=random)
    assert (reduce(engine, one, gradient) - gradient).norm() < 0.2 * gradient.norm()


def test_no_tensor_errs_for_another(engine: FlatEngine) -> None:
    """Nor is it NaN because of another."""
    rows = matrix("two", "b", "c")
    gradient = torch.randn(rows.size, generator=torch.Generator().manual_seed(3))
    gradient[:COLUMNS] *= 1e4
    average = reduce(engine, rows, gradient)[COLUMNS:]
    assert (average - gradient[COLUMNS:]).norm() < 0.2 * gradient[COLUMNS:].norm()
    gradient[0] = torch.nan
    average = reduce(engine, rows, gradient)
    assert average[:64].isnan().all()
    assert average[COLUMNS:].isfinite().all()


def test_a_state_has_the_round_and_goes_back_to_it(engine: FlatEngine) -> None:
    rows = matrix("one", "a")
    gradient = torch.randn(rows.size, generator=torch.Generator().manual_seed(4))
    engine.start_step()
    reduce(engine, rows, gradient)
    state = engine.state_dict()
    assert (state["round"], state["step"]) == (1, 1)
    first, second = (reduce(engine, rows, gradient) for _ in range(2))
    assert not torch.equal(first, second)
    engine.load_state_dict(state)
    assert torch.equal(reduce(engine, rows, gradient), first)
