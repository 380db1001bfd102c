"""Loads the state of compression from a checkpoint of any number of ranks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.storage import StorageReader

from byteps_thc._engine.saved_state import sealed, shards_of
from byteps_thc._scheme.errors import CheckpointError, ConfigurationError, ThcError
from byteps_thc.checkpoint.entries import CompressionState, Header, own_state, require_state, scoped_state
from byteps_thc.checkpoint.saved_states import SavedInFolder, SavedStates

_logger = logging.getLogger("byteps_thc")

#: Values that a state keeps when it loads: its rank and its current settings.
_IDENTITY = ("worker", "workers", "config", "scope")


def load(
    state: CompressionState,
    checkpoint: str | os.PathLike[str] | StorageReader,
    *,
    key: str = "thc",
    scope: str | None = None,
    parameters: Iterable[tuple[str, Tensor]] | None = None,
    strict: bool = True,
    process_group: dist.ProcessGroup | None = None,
) -> None:
    """Load the entry of `dcp.save({key: checkpointable(state), ...})`, saved by any number of ranks; collective.

    state: the state to load into.
    checkpoint: folder, or a DCP storage reader.
    key: key in dcp.save, default "thc".
    scope: scope of checkpointable(), default: none.
    parameters: model.named_parameters(), to check names and sizes; default: the parameters of the state, if known. The
        state's sizes, possibly of shards, override the model's.
    strict: raise for residuals of unknown parameters or other levels, default True. False drops these residuals.
    process_group: the ranks that load, default: all ranks. CUDA groups require torch.cuda.set_device().

    The same number of ranks resumes bit-exactly. With another number, residuals start at zero, with a warning, and
    steps and rounds resume. Settings may differ from the saved settings. A parameter without a saved residual starts
    with none. Compression without error feedback, as among ranks, drops residuals with a warning. Without residuals,
    steps and rounds resume in any levels.

    Residuals of whole parameters (one level) and of shards (two levels) are not converted into each other.

    Load only trusted checkpoints: torch unpickles the folder's metadata, so a writer of the folder can run code here,
    as with any torch.distributed.checkpoint.load().

    Raises CheckpointError if the entry is missing, damaged or inconsistent. Raises ConfigurationError if a parameter
    has another size, or, with strict, for residuals of unknown parameters or other levels. An error on one rank is
    raised on all ranks, and all states are then unchanged, unless load_state_dict() of some ranks rejects a state with
    the right parameters and sizes, which the error says.
    """
    take_over(state, lambda: SavedInFolder(checkpoint, key), scope, parameters, strict, process_group)


def take_over(
    state: CompressionState,
    saved: Callable[[], SavedStates],
    scope: str | None,
    parameters: Iterable[tuple[str, Tensor]] | None,
    strict: bool,
    process_group: dist.ProcessGroup | None,
) -> None:
    """Load the states that `saved` opens; arguments and errors are load()'s."""
    loaded: dict[str, Any] | None = None
    error: ThcError | None = None
    try:
        require_state(state, "load")
        mine = scoped_state(state, scope)
        loaded = own_state(_of_this_rank(saved(), mine, _sizes(state, parameters), strict), scope)
    except ThcError as raised:
        error = raised
    _agree(error, "load, so no rank has", process_group)
    assert loaded is not None
    try:
        state.load_state_dict(sealed(loaded))
    except ThcError as raised:
        error = raised
    _agree(error, "take over the state, others have", process_group)


def _of_this_rank(
    reader: SavedStates, mine: Mapping[str, Any], sizes: Mapping[str, int] | None, strict: bool
) -> dict[str, Any]:
    if (others := reader.of_other_levels(mine)) is not None:
        return _without_tensors(reader.header(others, 0), mine, strict)
    first = header = reader.header(mine, 0)
    workers = first.values.get("workers")
    same_ranks = workers == mine["workers"]
    if same_ranks:
        header = reader.header(mine, mine["worker"])
        for counter in ("round", "step"):
            if header.values.get(counter) != first.values.get(counter):
                raise CheckpointError(
                    f"ranks 0 and {mine['worker']} were saved at different times: another {counter}; load another "
                    "checkpoint"
                )
    wanted = _wanted(header, _kept(header, mine, strict), sizes, strict)
    tensors = _nothing(mine)
    if same_ranks:
        for kind, names in wanted.items():
            read = reader.tensors(mine, mine["worker"], header, kind)
            tensors[kind] = {name: read[name] for name in read if name in names}
    elif any(wanted.values()) and mine["worker"] == 0:
        _logger.warning(
            "the checkpoint is of %s ranks and here are %s: %s start at zero",
            workers,
            mine["workers"],
            " and ".join(wanted),
        )
    return header.values | {name: mine[name] for name in _IDENTITY if name in mine} | tensors


def _without_tensors(header: Header, mine: Mapping[str, Any], strict: bool) -> dict[str, Any]:
    """Return the state_dict() for this rank from a state of other levels: its counters, without tensors.

    Raises ConfigurationError if that would drop tensors.
    """
    if kinds := _kept(header, mine, strict):
        saved, here = (_levels(shards_of(values.get("scope"))) for values in (header.values, mine))
        _refuse_or_drop(
            f'{" and ".join(kinds)} in the checkpoint are of {saved}, and here of {here}: use levels="flat" to read '
            "what one level saved, a mesh or as many ranks on a node (HSDP: as many shards) to read what two saved",
            strict,
        )
    counters = {name: value for name, value in header.values.items() if name not in _IDENTITY}
    return counters | {name: mine[name] for name in _IDENTITY if name in mine} | _nothing(mine)


def _nothing(mine: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    return {kind: {} for kind, value in mine.items() if isinstance(value, Mapping) and kind not in _IDENTITY}


def _levels(shards: int | None) -> str:
    return "whole parameters (one level)" if shards is None else f"shards on nodes of {shards} ranks (two levels)"


def _kept(header: Header, mine: Mapping[str, Any], strict: bool) -> list[str]:
    """Return the kinds of tensors that this state keeps, too; ConfigurationError if others would be lost.

    A state without error feedback, as among ranks that decode, may drop residuals.
    """
    kept = []
    for kind in header.tensors:
        if kind == "residuals" and not (kind in mine and mine["config"].get("error_feedback", True)):
            _logger.warning("error feedback is off: the checkpoint's residuals are dropped")
        elif kind not in mine:
            _refuse_or_drop(f"{kind} are in the checkpoint, and this compression has none", strict)
        else:
            kept.append(kind)
    return kept


def _wanted(header: Header, kinds: Iterable[str], sizes: Mapping[str, int] | None, strict: bool) -> dict[str, set[str]]:
    """Return, by kind, the parameters whose tensors are loaded; ConfigurationError if they do not fit."""
    wanted = {}
    for kind in kinds:
        saved = header.tensors.get(kind, {})
        unknown = sorted(saved.keys() - sizes.keys()) if sizes is not None else []
        if unknown:
            _refuse_or_drop(f"{kind} in the checkpoint of parameters the model does not have: {unknown}", strict)
        wanted[kind] = saved.keys() - set(unknown)
        for name in sorted(wanted[kind] if sizes is not None else ()):
            assert sizes is not None
            if sizes[name] != saved[name].elements:
                raise ConfigurationError(
                    f"parameter {name!r} has {sizes[name]} elements, and {saved[name].elements} in the checkpoint: "
                    "load the checkpoint of this model"
                )
    return wanted


def _refuse_or_drop(what: str, strict: bool) -> None:
    if strict:
        raise ConfigurationError(f"{what}; strict=False drops them")
    _logger.warning("%s: dropped", what)


def _sizes(state: CompressionState, parameters: Iterable[tuple[str, Tensor]] | None) -> Mapping[str, int] | None:
    """Return elements by parameter name; None: unknown."""
    known: Mapping[str, int] | None = getattr(state, "parameter_sizes", None)
    if parameters is None:
        return known
    pairs = [*parameters]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise ConfigurationError("parameters must be model.named_parameters(), pairs of name and parameter")
    return {name: (known or {}).get(name, parameter.numel()) for name, parameter in pairs}


def _agree(error: ThcError | None, failed: str, process_group: dist.ProcessGroup | None) -> None:
    """Raise this rank's error, or another's: ranks with different rounds would sum up garbage."""
    if dist.is_available() and dist.is_initialized():
        errors: list[str | None] = [None] * dist.get_world_size(process_group)
        dist.all_gather_object(errors, None if error is None else str(error), group=process_group)
        if error is None and any(errors):
            ranks = dist.get_process_group_ranks(process_group)
            rank, message = next(each for each in zip(ranks, errors, strict=True) if each[1] is not None)
            raise CheckpointError(f"rank {rank} could not {failed}: {message}")
    if error is not None:
        raise error
