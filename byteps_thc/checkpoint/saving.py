"""The state of compression as one more object for torch.distributed.checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from byteps_thc._engine.saved_state import sealed
from byteps_thc._scheme.arrays import residual_torch_dtype
from byteps_thc._scheme.errors import CheckpointError
from byteps_thc.checkpoint.entries import (
    CompressionState,
    Header,
    checksum,
    own_state,
    rank_prefix,
    scoped_state,
    to_entries,
)


class Checkpointable:
    """A Stateful of DCP around a state of compression; made by checkpointable()."""

    def __init__(self, state: CompressionState, scope: str | None) -> None:
        self._state = state
        self._scope = scope

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's entries."""
        return to_entries(scoped_state(self._state, self._scope))

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        """Take over entries that dcp.load filled in.

        DCP loads only what state_dict() asked for, so this needs the same number of ranks, and a state that has seen
        its parameters. CheckpointError otherwise, or when entries are damaged; then nothing has changed.
        """
        mine = scoped_state(self._state, self._scope)
        prefix = rank_prefix(mine)
        header = Header.from_json(entries.get(f"{prefix}header"), f"{prefix}header")
        names = {(kind, name): f"{prefix}{kind}.{name}" for kind, saved in header.tensors.items() for name in saved}
        if header.values.get("workers") != mine["workers"] or not set(names.values()) <= entries.keys():
            raise CheckpointError(
                "dcp.load cannot load the state of compression into another number of ranks, or into a state that has "
                "not seen its parameters or keeps no residuals: use byteps_thc.checkpoint.load(state, checkpoint)"
            )
        kinds: dict[str, dict[str, Any]] = {kind: {} for kind in header.tensors}
        for (kind, name), entry in names.items():
            saved, loaded = header.tensors[kind][name], entries[entry]
            if loaded.dtype != residual_torch_dtype(saved.dtype):  # DCP has converted it, and no checksum fits
                raise CheckpointError(
                    f"{entry} was saved as {saved.dtype}, and this state has another residual_dtype: dcp.load cannot "
                    "tell whether it is damaged; use byteps_thc.checkpoint.load(state, checkpoint), or the same setting"
                )
            if loaded.numel() != saved.elements or checksum(loaded) != saved.crc32:
                raise CheckpointError(f"{entry} is damaged: another size or checksum than when it was saved")
            kinds[kind][name] = loaded
        self._state.load_state_dict(sealed(own_state(header.values | kinds, self._scope)))


def checkpointable(state: CompressionState, *, scope: str | None = None) -> Checkpointable:
    """Return an object for dcp.save, whose entries have names of their own on every rank.

    state: a ThcState, a handle of byteps_thc.fsdp, a ThcReducer, a GradientAverager or an engine. scope: names the
    ranks of the state, such as a stage's, when they are not all ranks and the state has no such name itself (handles of
    FSDP without replicas have); ranks that average in two levels have one scope, to which that of the shard is added.
    ConfigurationError when a scope is needed and missing. Save between steps. Load with byteps_thc.checkpoint.load.
    """
    return Checkpointable(state, scope)
