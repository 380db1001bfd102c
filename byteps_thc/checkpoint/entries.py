"""Converts a state of compression to entries of a checkpoint, and back.

torch.distributed.checkpoint (DCP) takes tensors of the same name for copies of one another and saves only one, but
every rank has its own residuals. The names thus contain the rank. Rank 3 saves, for `"thc": checkpointable(state)`,

    thc.rank3.header                     JSON: step, round, settings, checksum and size of every tensor here
    thc.rank3.residuals.layer1.weight    float32[elements of the parameter]

THC among ranks keeps no residuals, and has only a header. A state without all ranks has its scope in front of these
names, such as thc.shard0of2.rank1.header. The user's scope precedes a shard's: thc.stage0.shard0of2.rank1.header.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from byteps_thc._base.errors import CheckpointError, ConfigurationError
from byteps_thc._base.settings import describe
from byteps_thc._engine.saved_state import sealed, shards_of, unsealed


class CompressionState(Protocol):
    """Protocol of states for checkpoints: states and handles of front ends, and engines.

    state_dict() has "worker" and "workers", and plain values, the same on all ranks. Optional: "residuals", 1-D float32
    tensors or arrays by parameter name, "scope", a name for the ranks of a state without all ranks, and an attribute
    parameter_sizes, elements by parameter name.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of this rank's state."""

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Load a state_dict()."""


class SavedTensor(NamedTuple):
    """A tensor of a checkpoint: number of elements, float32, and CRC-32 of its bytes."""

    elements: int
    crc32: int


@dataclass(frozen=True)
class Header:
    """One rank's state: plain values of its state_dict(), and its residuals' sizes by parameter name."""

    values: dict[str, Any]
    residuals: dict[str, SavedTensor]

    def to_json(self) -> str:
        """Return the entry's value."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: object, entry: str) -> "Header":
        """Read the entry's value; CheckpointError if it is invalid."""
        try:
            fields = json.loads(str(text))
            residuals = {name: SavedTensor(*saved) for name, saved in fields["residuals"].items()}
            return cls(dict(fields["values"]), residuals)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"entry {entry!r} is damaged: {error!r}") from error

    def entries(self, prefix: str) -> dict[str, SavedTensor]:
        """Return the residuals by entry."""
        return {residual_entry(prefix, name): saved for name, saved in self.residuals.items()}


def require_state(state: object, user: str) -> None:
    """Raise ConfigurationError, naming the function `user`, unless `state` can be a state of compression."""
    if isinstance(state, (torch.nn.Module, type)) or not hasattr(state, "load_state_dict"):
        raise ConfigurationError(
            f"{user}() takes the result of compress(), or another state of compression, not {describe(state)}"
        )


def scoped_state(state: CompressionState, scope: str | None) -> dict[str, Any]:
    """Return the state_dict() with a scope if it needs one; ConfigurationError if none is given.

    scope: the user's. It replaces the state's own, but precedes a shard's.
    """
    mine = unsealed(state.state_dict())  # entries have checksums, too
    if "residuals" in mine:
        mine["residuals"] = {
            name: torch.as_tensor(residual, device="cpu") for name, residual in mine["residuals"].items()
        }
    own = mine.get("scope")
    shards = shards_of(own)
    if scope is not None:
        mine["scope"] = scope if shards is None else f"{scope}.{own}"
    elif not own or shards is not None:  # a shard's name does not identify the ranks
        averaged = mine["workers"] * (shards or 1)
        ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else averaged
        if averaged != ranks:
            raise ConfigurationError(
                f"the state is of {averaged} of {ranks} ranks: give scope=..., a name for these ranks that no others "
                "use, the same when saving and loading"
            )
    return mine


def own_state(state: Mapping[str, Any], scope: str | None) -> dict[str, Any]:
    """Return a state of scoped_state() for load_state_dict(): without the user's scope."""
    own = state.get("scope")
    if scope is not None:
        own = str(own).removeprefix(scope).removeprefix(".")
    return {key: value for key, value in state.items() if key != "scope"} | ({"scope": own} if own else {})


def rank_prefix(state: Mapping[str, Any], worker: int | None = None) -> str:
    """Return the first part of a rank's entry names; worker: default: the state's own."""
    scope = state.get("scope")
    return f"{scope}." * bool(scope) + f"rank{state['worker'] if worker is None else worker}."


def residual_entry(prefix: str, name: str) -> str:
    """Return the name of the entry of a parameter's residual."""
    return f"{prefix}residuals.{name}"


def to_entries(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of one rank's state_dict()."""
    residuals: Mapping[str, Tensor] = state.get("residuals", {})
    header = Header(
        values={key: value for key, value in state.items() if key != "residuals"},
        residuals={name: SavedTensor(residual.numel(), checksum(residual)) for name, residual in residuals.items()},
    )
    prefix = rank_prefix(state)
    entries = {residual_entry(prefix, name): residual for name, residual in residuals.items()}
    return {f"{prefix}header": header.to_json()} | entries


def checksum(tensor: Tensor) -> int:
    """Return the CRC-32 of the tensor's bytes."""
    flat = tensor.detach().cpu().contiguous()
    return zlib.crc32(flat.view(torch.uint8).numpy().data if flat.numel() else b"")


class Checkpointable:
    """A Stateful of DCP around a state of compression; made by checkpointable()."""

    def __init__(self, state: CompressionState, scope: str | None) -> None:
        self._state, self._scope = state, scope

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's entries."""
        return to_entries(scoped_state(self._state, self._scope))

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        """Load entries that dcp.load filled in.

        DCP loads only entries of state_dict(), so this needs the same number of ranks, and a state that has seen its
        parameters. Raises CheckpointError otherwise, or for damaged entries, with nothing changed.
        """
        mine = scoped_state(self._state, self._scope)
        prefix = rank_prefix(mine)
        header = Header.from_json(entries.get(f"{prefix}header"), f"{prefix}header")
        saved = header.entries(prefix)
        if header.values.get("workers") != mine["workers"] or not saved.keys() <= entries.keys():
            raise CheckpointError(
                "dcp.load cannot load the state of compression into another number of ranks, or into a state that has "
                "not seen its parameters or keeps no residuals: use byteps_thc.checkpoint.load(state, checkpoint)"
            )
        for entry, size in saved.items():
            if SavedTensor(entries[entry].numel(), checksum(entries[entry])) != size:
                raise CheckpointError(
                    f"{entry} is damaged: its size or checksum has changed; load an earlier checkpoint"
                )
        state = header.values
        if "residuals" in mine:
            state["residuals"] = {name: entries[residual_entry(prefix, name)] for name in header.residuals}
        self._state.load_state_dict(sealed(own_state(state, self._scope)))


def checkpointable(state: CompressionState, *, scope: str | None = None) -> Checkpointable:
    """Return an object for dcp.save, whose entries have unique names on every rank. Save between steps.

    state: a ThcState, a handle of byteps_thc.fsdp, a ThcReducer, a GradientAverager or an engine.
    scope: name of the ranks of the state, such as a stage, if not all ranks have it; default: the state's own, as of
        FSDP handles without replicas. Ranks that average in two levels pass the same scope.

    Load with byteps_thc.checkpoint.load. Raises ConfigurationError for other objects, and if a scope is missing.
    """
    require_state(state, "checkpointable")
    return Checkpointable(state, scope)
