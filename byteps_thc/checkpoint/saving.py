"""The state of compression as one more object for torch.distributed.checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from byteps_thc.checkpoint.entries import CompressionState, Header, checksum, rank_prefix, to_entries
from byteps_thc.errors import CheckpointError


class Checkpointable:
    """A Stateful of DCP around a state of compression; made by checkpointable()."""

    def __init__(self, state: CompressionState) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's entries."""
        return to_entries(self._state.state_dict())

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        """Take over entries that dcp.load filled in.

        DCP loads only what state_dict() asked for, so this needs the same number of ranks, and a state that has seen
        its parameters. CheckpointError otherwise, or when entries are damaged; then nothing has changed.
        """
        mine = self._state.state_dict()
        prefix = rank_prefix(mine)
        header = Header.from_json(entries.get(f"{prefix}header"), f"{prefix}header")
        names = {(kind, name): f"{prefix}{kind}.{name}" for kind, saved in header.tensors.items() for name in saved}
        if header.values.get("workers") != mine["workers"] or not set(names.values()) <= entries.keys():
            raise CheckpointError(
                "dcp.load cannot load the state of compression into another number of ranks, or into a state that has "
                "not seen its parameters: use byteps_thc.checkpoint.load(state, checkpoint)"
            )
        kinds: dict[str, dict[str, Any]] = {kind: {} for kind in header.tensors}
        for (kind, name), entry in names.items():
            saved, loaded = header.tensors[kind][name], entries[entry]
            if loaded.numel() != saved.elements or checksum(loaded) != saved.crc32:
                raise CheckpointError(f"{entry} is damaged: another size or checksum than when it was saved")
            kinds[kind][name] = loaded
        self._state.load_state_dict(header.values | kinds)


def checkpointable(state: CompressionState) -> Checkpointable:
    """Return an object for dcp.save, whose entries have names of their own on every rank.

    state: a ThcState, a handle of byteps_thc.fsdp, an engine. Save between steps. Load with byteps_thc.checkpoint.load.
    """
    return Checkpointable(state)
