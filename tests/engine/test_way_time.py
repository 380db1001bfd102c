"""How large the gradients are that ways are measured with."""

import math
from typing import Any, NoReturn, cast

import pytest
import torch

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._engine.engine import Engine, GradientBuffer
from byteps_thc._engine.levels import LEAST_PARAMETERS, MOST_PARAMETERS, seconds_of_averages


class Recorded:
    """An engine that averages with itself at once."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.closed = False

    def start_step(self) -> None:
        pass

    def all_reduce(self, buffer: GradientBuffer) -> torch.futures.Future[Any]:
        self.sizes.append(buffer.gradient.numel())
        done: torch.futures.Future[Any] = torch.futures.Future()
        done.set_result(buffer.gradient)
        return done

    def close(self) -> None:
        self.closed = True


def measured(slowest_s: float) -> tuple[set[int], set[int]]:
    first, second = Recorded(), Recorded()
    made = [lambda: cast(Engine, first), lambda: cast(Engine, second)]
    assert len(seconds_of_averages(made, lambda _: slowest_s)) == 2
    assert first.closed
    assert second.closed
    return set(first.sizes), set(second.sizes)


@pytest.mark.parametrize(
    ("slowest_s", "parameters"), [(1e-3, MOST_PARAMETERS), (25e-3, 4 * LEAST_PARAMETERS), (5.0, LEAST_PARAMETERS)]
)
def test_slow_networks_average_small_gradients(slowest_s: float, parameters: int) -> None:
    """The same ones over both engines. At 5 Mb/s each of six averages of the largest took 2 s."""
    first, second = measured(slowest_s)
    assert first == {LEAST_PARAMETERS, parameters}
    assert second == {parameters}


def test_an_engine_that_cannot_be_had_takes_for_ever() -> None:
    def refuse() -> NoReturn:
        raise ConfigurationError("no")

    other = Recorded()
    seconds = seconds_of_averages([refuse, lambda: cast(Engine, other)], lambda _: 1e-3)
    assert seconds[0] == math.inf
    assert math.isfinite(seconds[1])
