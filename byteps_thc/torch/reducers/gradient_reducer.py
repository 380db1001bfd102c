"""What averages gradients for a DistributedOptimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from byteps_thc.pipeline.statistics import CompressionStats
from byteps_thc.torch.parameters import NamedParameter


class GradientReducer(Protocol):
    """Averages the gradients of named parameters over all workers, asynchronously."""

    def push(self, parameter: NamedParameter) -> None:
        """Start averaging parameter.tensor.grad, which nobody may touch until finish().

        Called once in a round for every parameter, by one thread at a time.
        """

    def finish(self) -> None:
        """End the round: wait until every pushed gradient is the average. All parameters have been pushed."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint of this worker needs beside the optimizer's state."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state_dict(); ConfigurationError when it does not fit."""

    def statistics(self) -> CompressionStats:
        """Return what compression did and what it cost."""

    def close(self) -> None:
        """Leave the network. May be called again."""
