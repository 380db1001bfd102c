"""Loading the state of compression from a checkpoint of any number of ranks."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as load_entries
from torch.distributed.checkpoint.storage import StorageReader

from byteps_thc.arrays import residual_torch_dtype
from byteps_thc.checkpoint.entries import CompressionState, Header, checksum, own_state, rank_prefix, scoped_state
from byteps_thc.checkpoint.rescale import Share, shares
from byteps_thc.errors import CheckpointError, ConfigurationError, ThcError
from byteps_thc.pipeline.saved_state import sealed, shards_of

_logger = logging.getLogger("byteps_thc")

#: What a state keeps of its own: who it is and how it compresses now.
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
    """Load what `dcp.save({key: checkpointable(state), ...})` saved, from as many ranks as there were; collective.

    checkpoint: its folder, or a DCP storage reader. scope: as for checkpointable. parameters: the model's, as
    model.named_parameters() gives them, to check names and sizes against; needless when the state knows its
    parameters (FSDP handles do). Sizes are the state's where it knows them, which may be those of shards.
    process_group: the ranks that load, default all ranks; CUDA groups need torch.cuda.set_device().

    The same number of ranks goes on bit-exactly. Another number gets the residuals redistributed (rescale.py), so that
    their mean, the pending update, stays. Settings may differ from the saved ones: residuals are plain gradients, and
    are converted where they are kept in another type (ThcConfig.residual_dtype). A parameter without a saved residual
    starts with none.

    Residuals are not converted between levels: those of whole parameters, which ranks that average in one level have,
    and those of shards, of as many as ranks share a node. Where the checkpoint has residuals, and of other levels than
    the state's, it is a ConfigurationError; strict=False drops them. Where it has none, steps and rounds go on.

    Load only what you trust: torch unpickles the folder's metadata, so who can write to it runs code here, as with any
    torch.distributed.checkpoint.load() of the folder.

    Raises CheckpointError when the checkpoint has no such entry, is damaged or does not hold together, and
    ConfigurationError when a parameter has another size, has a residual here and is unknown now (strict=False drops
    it), or residuals are of other levels. An error on one rank is an error on all of them, and then no state has
    changed; but for a state whose load_state_dict() refuses on some ranks what has the right parameters and sizes,
    which the error says.
    """
    loaded: dict[str, Any] | None = None
    error: ThcError | None = None
    try:
        reader = _SavedStates(checkpoint, key)
        mine = scoped_state(state, scope)
        loaded = own_state(_redistributed(reader, mine, _sizes(state, parameters), strict), scope)
    except ThcError as raised:
        error = raised
    _agree(error, "load, so no rank has", process_group)
    assert loaded is not None
    try:
        state.load_state_dict(sealed(loaded))
    except ThcError as raised:
        error = raised
    _agree(error, "take over the state, others have", process_group)


class _SavedStates:
    """The entries under one key of a checkpoint. All methods raise CheckpointError when it cannot be read."""

    def __init__(self, checkpoint: str | os.PathLike[str] | StorageReader, key: str) -> None:
        self._key = key
        self._name = str(getattr(checkpoint, "path", checkpoint))
        self._reader = checkpoint if isinstance(checkpoint, StorageReader) else FileSystemReader(Path(checkpoint))
        try:
            self._entries = self._reader.read_metadata().state_dict_metadata
        except Exception as error:
            raise CheckpointError(
                f"{self._name} is not a checkpoint, or an unfinished one: its metadata cannot be read ({error!r})"
            ) from error

    def of_other_levels(self, state: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return "scope" and "worker" of a state that was saved by the ranks of this one, but averaging in other
        levels; None when one was saved in the same levels, or in none.
        """
        mine = str(state.get("scope") or "")
        outer = mine if shards_of(mine) is None else mine.rpartition(".")[0]
        ranks = re.escape(f"{self._key}.") + (re.escape(outer) + r"\." if outer else "")
        entry = re.compile(ranks + r"(?:(shard\d+of\d+)\.)?rank0\.header")
        saved = sorted(found[1] or "" for name in self._entries if (found := entry.fullmatch(name)))
        if not saved or any(shards_of(theirs) == shards_of(mine) for theirs in saved):
            return None
        return {"scope": ".".join(filter(None, (outer, saved[0]))), "worker": 0}

    def header(self, state: Mapping[str, Any], worker: int) -> Header:
        """Return what worker `worker` of the state's scope saved."""
        entry = f"{self._key}.{rank_prefix(state, worker)}header"
        if entry not in self._entries:
            found = sorted(name.removesuffix(".header") for name in self._entries if name.endswith(".header"))
            raise CheckpointError(
                f"{self._name} has no entry {entry!r}; states of compression in it: {', '.join(found) or 'none'}. "
                "Give the key it was saved under (key=...), and the same sharding for replicas"
            )
        return Header.from_json(self._read({entry: ""})[entry], entry)

    def tensors(self, state: Mapping[str, Any], worker: int, header: Header, kind: str) -> dict[str, Tensor]:
        """Return that worker's tensors of one kind ("residuals") by parameter name as float32, checksums verified."""
        saved = header.tensors.get(kind, {})
        prefix = f"{self._key}.{rank_prefix(state, worker)}{kind}."
        templates = {}
        for name, tensor in saved.items():
            stored = getattr(self._entries.get(prefix + name), "size", None)
            if stored != torch.Size([tensor.elements]):
                raise CheckpointError(
                    f"{self._name} is damaged: {prefix + name} has size {stored}, not {tensor.elements}"
                )
            templates[prefix + name] = torch.empty(tensor.elements, dtype=residual_torch_dtype(tensor.dtype))
        read = self._read(templates)
        for name, tensor in saved.items():
            if checksum(read[prefix + name]) != tensor.crc32:
                raise CheckpointError(
                    f"{self._name} is damaged: {prefix + name} has another checksum than it was saved with"
                )
        return {name: read[prefix + name].float() for name in saved}

    def _read(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Read entries, tensors in place. Every rank reads for itself: the ranks' entries differ."""
        if not wanted:
            return {}
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")  # meant: no_dist
                load_entries(wanted, storage_reader=self._reader, no_dist=True)
        except (Exception, CheckpointException) as error:  # DCP's is a BaseException
            causes = (
                [cause for cause, _ in error.failures.values()] if isinstance(error, CheckpointException) else [error]
            )
            raise CheckpointError(
                f"{self._name} is damaged or incomplete: {next(iter(wanted))} cannot be read ({causes[0]!r})"
            ) from error
        return wanted


def _redistributed(
    reader: _SavedStates, mine: Mapping[str, Any], sizes: Mapping[str, int] | None, strict: bool
) -> dict[str, Any]:
    """Return the state_dict() for this rank. Holds one saved rank's tensors at a time."""
    if (others := reader.of_other_levels(mine)) is not None:
        return _without_tensors(reader.header(others, 0), mine, strict)
    first = reader.header(mine, 0)
    old_workers = first.values.get("workers")
    if not isinstance(old_workers, int):
        raise CheckpointError(f"the state of compression does not say of how many workers it is: {old_workers!r}")
    state = first.values
    sums: dict[str, dict[str, Tensor]] = {kind: {} for kind in first.tensors if kind in mine}
    for share in shares(mine["worker"], mine["workers"], old_workers):
        header = reader.header(mine, share.worker)
        for counter in ("round", "step"):
            if header.values.get(counter) != first.values.get(counter):
                raise CheckpointError(f"ranks 0 and {share.worker} were saved at different times: another {counter}")
        if old_workers == mine["workers"]:
            state = header.values
        for kind, names in _wanted(header, mine, sizes, strict).items():
            _add(sums[kind], reader.tensors(mine, share.worker, header, kind), names, share)
    return state | {name: mine[name] for name in _IDENTITY if name in mine} | sums


def _without_tensors(header: Header, mine: Mapping[str, Any], strict: bool) -> dict[str, Any]:
    """Return the state_dict() for this rank from a state of other levels: its counters; no tensors, which do not fit.

    ConfigurationError when there are some that would be taken over.
    """
    kinds = [kind for kind, names in _wanted(header, mine, None, strict).items() if names]
    if kinds:
        saved, here = (_levels(shards_of(values.get("scope"))) for values in (header.values, mine))
        _refuse_or_drop(
            f'{" and ".join(kinds)} in the checkpoint are of {saved}, and here of {here}: use nodes="flat" to read '
            "what one level saved, a mesh or as many ranks on a node (HSDP: as many shards) to read what two saved",
            strict,
        )
    counters = {name: value for name, value in header.values.items() if name not in _IDENTITY}
    empty: dict[str, Any] = {kind: {} for kind in header.tensors if kind in mine}
    return counters | {name: mine[name] for name in _IDENTITY if name in mine} | empty


def _levels(shards: int | None) -> str:
    return "whole parameters (one level)" if shards is None else f"shards on nodes of {shards} ranks (two levels)"


def _add(sums: dict[str, Tensor], saved: Mapping[str, Tensor], names: set[str], share: Share) -> None:
    """Add an old rank's tensors, weighted, to the sums."""
    for name in names & saved.keys():
        weighted = saved[name] if share.weight == 1 else saved[name].mul_(float(share.weight))
        sums[name] = sums[name].add_(weighted) if name in sums else weighted


def _wanted(
    header: Header, mine: Mapping[str, Any], sizes: Mapping[str, int] | None, strict: bool
) -> dict[str, set[str]]:
    """Return, by kind, the parameters whose tensors are taken over; ConfigurationError when they do not fit."""
    wanted = {}
    for kind, saved in header.tensors.items():
        if kind not in mine:
            _refuse_or_drop(f"{kind} are in the checkpoint, and this compression has none", strict)
            continue
        if kind == "residuals" and not mine["config"].get("error_feedback", True):
            _logger.warning("error feedback is off now: the checkpoint's residuals are not taken over")
            continue
        unknown = sorted(saved.keys() - sizes.keys()) if sizes is not None else []
        if unknown:
            _refuse_or_drop(f"{kind} in the checkpoint of parameters the model does not have: {unknown}", strict)
        wanted[kind] = saved.keys() - set(unknown)
        for name in sorted(wanted[kind] if sizes is not None else ()):
            assert sizes is not None
            if sizes[name] != saved[name].elements:
                raise ConfigurationError(
                    f"parameter {name!r} has {sizes[name]} elements, and {saved[name].elements} in the checkpoint"
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
    return {name: (known or {}).get(name, parameter.numel()) for name, parameter in parameters}


def _agree(error: ThcError | None, failed: str, process_group: dist.ProcessGroup | None) -> None:
    """Raise this rank's error, or another's: ranks that go on with different rounds would sum up garbage."""
    if dist.is_available() and dist.is_initialized():
        errors: list[str | None] = [None] * dist.get_world_size(process_group)
        dist.all_gather_object(errors, None if error is None else str(error), group=process_group)
        if error is None and any(errors):
            ranks = dist.get_process_group_ranks(process_group)
            rank, message = next(each for each in zip(ranks, errors, strict=True) if each[1] is not None)
            raise CheckpointError(f"rank {rank} could not {failed}: {message}")
    if error is not None:
        raise error
