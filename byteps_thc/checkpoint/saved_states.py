"""Saved entries of compression states: in a DCP checkpoint, or in memory."""

import os
import re
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as load_entries
from torch.distributed.checkpoint.storage import StorageReader
from typing_extensions import override

from byteps_thc._base.errors import CheckpointError
from byteps_thc._engine.saved_state import shards_of
from byteps_thc.checkpoint.entries import Header, SavedTensor, checksum, rank_prefix, residual_entry


class SavedStates:
    """All entries of states; CheckpointError if unreadable. name: for errors. sizes: of entries; None: no tensor."""

    def __init__(self, name: str, prefix: str, sizes: Mapping[str, torch.Size | None]) -> None:
        self._name, self._prefix, self._sizes = name, prefix, sizes

    @abstractmethod
    def _read(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Return the values of entries. wanted: values of the same kind, which may be overwritten."""

    def of_other_levels(self, state: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return "scope" and "worker" of a state that these ranks saved in other levels; None if only in these."""
        mine = str(state.get("scope") or "")
        outer = mine if shards_of(mine) is None else mine.rpartition(".")[0]
        ranks = re.escape(self._prefix) + (re.escape(outer) + r"\." if outer else "")
        entry = re.compile(ranks + r"(?:(shard\d+of\d+)\.)?rank0\.header")
        saved = sorted(found[1] or "" for name in self._sizes if (found := entry.fullmatch(name)))
        if not saved or any(shards_of(theirs) == shards_of(mine) for theirs in saved):
            return None
        return {"scope": ".".join(filter(None, (outer, saved[0]))), "worker": 0}

    def header(self, state: Mapping[str, Any], worker: int) -> Header:
        """Return the header that worker `worker` of the state's scope saved."""
        entry = f"{self._prefix}{rank_prefix(state, worker)}header"
        if entry not in self._sizes:
            found = sorted(name.removesuffix(".header") for name in self._sizes if name.endswith(".header"))
            raise CheckpointError(
                f"{self._name} has no entry {entry!r}; states of compression in it: {', '.join(found) or 'none'}. "
                "Give the key it was saved under (key=...), and the same sharding for replicas"
            )
        return Header.from_json(self._read({entry: ""})[entry], entry)

    def residuals(self, state: Mapping[str, Any], worker: int, saved: Mapping[str, SavedTensor]) -> dict[str, Tensor]:
        """Return residuals of that worker by parameter name, with their checksums verified."""
        prefix = f"{self._prefix}{rank_prefix(state, worker)}"
        names = {residual_entry(prefix, name): name for name in saved}
        templates = {}
        for entry, name in names.items():
            stored = self._sizes.get(entry)
            if stored != torch.Size([saved[name].elements]):
                raise CheckpointError(f"{self._name} is damaged: {entry} has size {stored}, not {saved[name].elements}")
            templates[entry] = torch.empty(stored, dtype=torch.float32, device="cpu")
        read = self._read(templates)
        for entry, name in names.items():
            if checksum(read[entry]) != saved[name].crc32:
                raise CheckpointError(f"{self._name} is damaged: {entry} has another checksum than it was saved with")
        return {name: read[entry] for entry, name in names.items()}


class SavedInFolder(SavedStates):
    """The entries under one key of a DCP checkpoint."""

    def __init__(self, checkpoint: str | os.PathLike[str] | StorageReader, key: str) -> None:
        name = str(getattr(checkpoint, "path", checkpoint))
        self._reader = checkpoint if isinstance(checkpoint, StorageReader) else FileSystemReader(Path(checkpoint))
        try:
            entries = self._reader.read_metadata().state_dict_metadata
        except Exception as error:
            raise CheckpointError(
                f"{name} is not a checkpoint, or an unfinished one: its metadata cannot be read ({error!r})"
            ) from error
        super().__init__(name, f"{key}.", {entry: getattr(saved, "size", None) for entry, saved in entries.items()})

    @override
    def _read(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Read entries, tensors in place. Every rank reads by itself: the ranks' entries differ."""
        if not wanted:
            return {}
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")  # intended: no_dist
                load_entries(wanted, storage_reader=self._reader, no_dist=True)
        except (Exception, CheckpointException) as error:  # DCP's is a BaseException
            cause = next(iter(error.failures.values()))[0] if isinstance(error, CheckpointException) else error
            raise CheckpointError(
                f"{self._name} is damaged or incomplete: {next(iter(wanted))} cannot be read ({cause!r})"
            ) from error
        return wanted


class SavedInMemory(SavedStates):
    """The entries in a mapping, as from gathering.py."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        sizes = {name: value.shape if isinstance(value, Tensor) else None for name, value in entries.items()}
        super().__init__("the state that was gathered", "", sizes)
        self._entries = entries

    @override
    def _read(self, wanted: dict[str, Any]) -> dict[str, Any]:
        for name, like in wanted.items():
            value = self._entries[name]
            if isinstance(like, Tensor) and value.dtype != like.dtype:
                raise CheckpointError(f"{self._name} is damaged: {name} is {value.dtype}, not {like.dtype}")
        values = ((name, self._entries[name]) for name in wanted)
        return {name: value.clone() if isinstance(value, Tensor) else value for name, value in values}
