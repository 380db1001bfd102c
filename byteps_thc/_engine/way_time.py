"""How long an average takes over the engine of one of several ways: measured, where it decides between them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch

from byteps_thc._engine.buffers import GradientBuffer, ParameterSlice
from byteps_thc._engine.engine import Engine
from byteps_thc._scheme.errors import ConfigurationError

#: Parameters of the largest gradient that is averaged, 20 ms of traffic at 1 Gb/s; and of the one that says how large.
MOST_PARAMETERS, LEAST_PARAMETERS = 1 << 20, 1 << 16
#: An average takes no longer if the least gradient's does not.
_AVERAGE_S = 0.1
#: The first one makes memory, tables and threads; the shortest of the others counts.
_ROUNDS = 3


def seconds_of_averages(engines: Sequence[Callable[[], Engine]], slowest: Callable[[float], float]) -> list[float]:
    """Return how long each new engine takes for the same float32 gradient in host memory; collective.

    slowest: returns the longest time of all ranks, collective: the gradient is smaller if the network is slow. Returns
    infinity for an engine that cannot be had (ConfigurationError). Raises what averages raise.
    """
    seconds, parameters = [], 0
    for make in engines:
        try:
            engine = make()
        except ConfigurationError:  # on all ranks; the caller's own engine raises it again if no way is left
            seconds.append(math.inf)
            continue
        try:
            if not parameters:
                least_s = slowest(_least_s(engine, LEAST_PARAMETERS))
                parameters = LEAST_PARAMETERS * round(_AVERAGE_S / least_s)
                parameters = min(max(parameters, LEAST_PARAMETERS), MOST_PARAMETERS)
            seconds.append(_least_s(engine, parameters))
        finally:
            engine.close()
    return seconds


def _least_s(engine: Engine, parameters: int) -> float:
    name = f"measured {parameters}"
    gradient = torch.randn(parameters, generator=torch.Generator().manual_seed(1), device="cpu")
    buffer = GradientBuffer(name, gradient, (ParameterSlice(name, 0, parameters),))
    rounds = []
    for _ in range(_ROUNDS):
        began_s = time.perf_counter()
        engine.start_step()
        engine.all_reduce(buffer).wait()
        rounds.append(time.perf_counter() - began_s)
    return min(rounds[1:])
