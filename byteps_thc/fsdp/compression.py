"""What compress_reduce_scatter and compress_replicas return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from byteps_thc._engine.engine import Engine
from byteps_thc._engine.loss_scaling import LossScaling, saved_scale
from byteps_thc._engine.saved_state import require_sound, with_values
from byteps_thc._engine.statistics import CompressionStats
from byteps_thc._net.replicas import Replicas


class FsdpCompression:
    """Compression of an FSDP2 model: its state, its figures, its end.

    Save with byteps_thc.checkpoint.checkpointable(handle), between steps; load with byteps_thc.checkpoint.load.
    """

    def __init__(
        self,
        engine: Engine,
        scaling: LossScaling,
        sizes: Mapping[str, int],
        scope: str | None,
        uninstall: Callable[[], None],
        replicas: Replicas | None = None,
    ) -> None:
        self._engine = engine
        self._scaling = scaling
        self._scope = scope
        self._uninstall = uninstall
        #: the ranks that have the same shards; None where each has its own
        self.replicas = replicas
        #: elements of a residual, by parameter name; with servers there are some
        self.parameter_sizes = sizes

    def compression_stats(self) -> CompressionStats:
        """Return what compression did on this rank and what it cost."""
        return self._engine.statistics()

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state, copied: counters, settings, and residuals by parameter name if any."""
        self._scaling.undo_skipped_step()
        scope = {} if self._scope is None else {"scope": self._scope}
        return with_values(self._engine.state_dict(), loss_scale=self._scaling.scale, **scope)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state_dict() of the same rank and settings.

        ConfigurationError when it does not fit or is damaged; then nothing has changed.
        """
        require_sound(state, self.parameter_sizes)
        scale = saved_scale(state.get("loss_scale"))
        self._engine.load_state_dict(state)
        self._scaling.scale = scale

    def close(self) -> None:
        """Reduce uncompressed again, as before, and end the engine. May be called again."""
        self._uninstall()
        self._engine.close()
