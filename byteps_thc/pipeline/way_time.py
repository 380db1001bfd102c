"""How long an average takes over the engine of one of several ways: measured, where it decides between them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from byteps_thc.errors import ConfigurationError
from byteps_thc.pipeline.buffers import GradientBuffer, ParameterSlice
from byteps_thc.pipeline.engine import Engine

#: Parameters of the gradient that is averaged: 20 ms of traffic at 1 Gb/s.
MEASURED_PARAMETERS = 1 << 20
#: The first one makes memory, tables and threads; the shortest of the others counts.
_ROUNDS = 3


def seconds_of_average(make: Callable[[], Engine]) -> float:
    """Return how long the new engine takes for MEASURED_PARAMETERS float32 parameters in host memory; collective.

    Returns infinity if the engine cannot be had (ConfigurationError). Raises what averages raise.
    """
    try:
        engine = make()
    except ConfigurationError:  # on all ranks; the caller's own engine raises it again if no way is left
        return math.inf
    gradient = torch.randn(MEASURED_PARAMETERS, generator=torch.Generator().manual_seed(1), device="cpu")
    buffer = GradientBuffer("measured", gradient, (ParameterSlice("measured", 0, MEASURED_PARAMETERS),))
    rounds = []
    try:
        for _ in range(_ROUNDS):
            began_s = time.perf_counter()
            engine.start_step()
            engine.all_reduce(buffer).wait()
            rounds.append(time.perf_counter() - began_s)
    finally:
        engine.close()
    return min(rounds[1:])
