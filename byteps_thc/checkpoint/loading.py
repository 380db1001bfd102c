"""Loads the state of compression from a checkpoint of any number of ranks."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.storage import StorageReader

from byteps_thc._base.errors import CheckpointError, ConfigurationError, ThcError
from byteps_thc._engine.saved_state import sealed, shards_of
from byteps_thc.checkpoint.entries import CompressionState, Header, SavedTensor, own_state, require_state, scoped_state
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
    strict: raise for residuals of unknown parameters, default True. False drops these residuals.
    process_group: the ranks that load, default: all ranks. CUDA groups require torch.cuda.set_device().

    The same number of ranks in the same levels resumes bit-exactly. With others, residuals start at zero, with a
    warning, and steps and rounds resume. Settings may differ from the saved settings. A parameter without a saved
    residual starts with none. Compression without error feedback, as among ranks, drops residuals with a warning.

    Load only trusted checkpoints: torch unpickles the folder's metadata, so a writer of the folder can run code here,
    as with any torch.distributed.checkpoint.load().

    Raises CheckpointError if the entry is missing, damaged or inconsistent. Raises ConfigurationError if a parameter
    has another size, or, with strict, for residuals of unknown parameters. An error on one rank is raised on all ranks,
    and all states are then unchanged, unless load_state_dict() of some ranks rejects a state with the right parameters
    and sizes, which the error says.
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
    others = reader.of_other_levels(mine)
    first = header = reader.header(others or mine, 0)
    same_ranks = others is None and first.values.get("workers") == mine["workers"]
    if same_ranks:
        header = reader.header(mine, mine["worker"])
        for counter in ("round", "step"):
            if header.values.get(counter) != first.values.get(counter):
                raise CheckpointError(
                    f"ranks 0 and {mine['worker']} were saved at different times: another {counter}; load another "
                    "checkpoint"
                )
    # Other levels have other shards: sizes are not compared.
    wanted = _wanted(header, mine, None if others else sizes, strict)
    residuals: dict[str, Tensor] = {}
    if same_ranks:
        residuals = reader.residuals(mine, mine["worker"], wanted)
    elif wanted and mine["worker"] == 0:
        saved, here = _ranks(header.values), _ranks(mine)
        _logger.warning("the checkpoint is of %s, and here are %s: residuals start at zero", saved, here)
    counters = {name: value for name, value in header.values.items() if name not in _IDENTITY}
    loaded = counters | {name: mine[name] for name in _IDENTITY if name in mine}
    return loaded | {"residuals": residuals} if "residuals" in mine else loaded


def _ranks(values: Mapping[str, Any]) -> str:
    shards = shards_of(values.get("scope"))
    return f"{values.get('workers')} ranks" + ("" if shards is None else f" for each of {shards} shards")


def _wanted(
    header: Header, mine: Mapping[str, Any], sizes: Mapping[str, int] | None, strict: bool
) -> dict[str, SavedTensor]:
    """Return the saved residuals that are loaded; ConfigurationError if they do not fit the parameters."""
    saved = header.residuals
    if saved and not ("residuals" in mine and mine["config"].get("error_feedback", True)):
        _logger.warning("error feedback is off: the checkpoint's residuals are dropped")
        return {}
    if sizes is None:
        return saved
    if unknown := sorted(saved.keys() - sizes.keys()):
        what = f"residuals in the checkpoint of parameters the model does not have: {unknown}"
        if strict:
            raise ConfigurationError(f"{what}; strict=False drops them")
        _logger.warning("%s: dropped", what)
    wanted = {name: residual for name, residual in saved.items() if name in sizes}
    for name, residual in wanted.items():
        if sizes[name] != residual.elements:
            raise ConfigurationError(
                f"parameter {name!r} has {sizes[name]} elements, and {residual.elements} in the checkpoint: load the "
                "checkpoint of this model"
            )
    return wanted


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
