"""What compress_reduce_scatter and compress_replicas return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from byteps_thc.fsdp.parameters import ShardedParameter
from byteps_thc.fsdp.steps import BackwardSteps
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.loss_scaling import saved_scale
from byteps_thc.pipeline.saved_state import require_as_saved, require_sound, sealed
from byteps_thc.pipeline.statistics import CompressionStats
from byteps_thc.transport.replicas import Replicas


class FsdpCompression:
    """Compression of an FSDP2 model: its state, its figures, its end.

    Save with byteps_thc.checkpoint.checkpointable(handle), between steps; load with byteps_thc.checkpoint.load.
    """

    def __init__(
        self,
        engine: Engine,
        steps: BackwardSteps,
        sizes: Mapping[str, int],
        reordered: Mapping[str, ShardedParameter],
        scope: str | None,
        uninstall: Callable[[], None],
        replicas: Replicas | None = None,
    ) -> None:
        self._engine = engine
        self._steps = steps
        self._reordered = reordered
        self._scope = scope
        self._uninstall = uninstall
        #: the ranks that have the same shards; None where each has its own
        self.replicas = replicas
        #: elements of a residual, by parameter name; baselines and servers may have some
        self.parameter_sizes = sizes

    def compression_stats(self) -> CompressionStats:
        """Return what compression did on this rank and what it cost."""
        return self._engine.statistics()

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state, copied: counters, settings, and residuals by parameter name if any.

        Residuals are 1-D, in the parameters' own order, whatever the number of shards.
        """
        self._steps.scaling.undo_skipped_step()
        state = self._engine.state_dict() | {"loss_scale": self._steps.scaling.scale}
        if "residuals" in state:
            state["residuals"] = {
                name: self._reordered[name].from_shards(residual) if name in self._reordered else residual
                for name, residual in state["residuals"].items()
            }
        return sealed(state | ({} if self._scope is None else {"scope": self._scope}))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state_dict() of the same rank and settings.

        ConfigurationError when it does not fit or is damaged; then nothing has changed.
        """
        require_sound(state, self.parameter_sizes)
        require_as_saved(state)
        scale = saved_scale(state.get("loss_scale"))
        residuals: dict[str, Tensor] = {
            name: self._reordered[name].to_shards(residual) if name in self._reordered else residual
            for name, residual in state.get("residuals", {}).items()
        }
        same_order = {"residuals": residuals} if "residuals" in state else {}
        self._engine.load_state_dict(sealed(dict(state) | same_order))
        self._steps.scaling.scale = scale

    def close(self) -> None:
        """Reduce uncompressed again, as before, and end the engine. May be called again."""
        self._uninstall()
        self._engine.close()
