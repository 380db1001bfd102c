"""One state of all ranks, for frameworks that save on one rank only."""

import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from byteps_thc._base.errors import CheckpointError, ConfigurationError, ThcError
from byteps_thc._net.communicator import Communicator
from byteps_thc._net.groups import Communicators, choose_process_group
from byteps_thc._net.handshake import gather_over
from byteps_thc._net.replicas import bytes_of
from byteps_thc.checkpoint.entries import CompressionState, Header, SavedTensor, require_state, scoped_state, to_entries
from byteps_thc.checkpoint.loading import take_over
from byteps_thc.checkpoint.saved_states import SavedInMemory

_SLICE_BYTES = 16 << 20
_HEADER = "header"


class Gathered:
    """State of all ranks with the interface that frameworks save and load; made by gathered()."""

    def __init__(
        self,
        state: CompressionState,
        scope: str | None,
        process_group: dist.ProcessGroup | None,
        *,
        everywhere: bool,
        deadline_s: float,
    ) -> None:
        self._state, self._scope, self._process_group = state, scope, process_group
        self._everywhere, self._deadline_s = everywhere, deadline_s

    def state_dict(self) -> dict[str, Any]:
        """Return the entries of all ranks on rank 0, or on all ranks with `everywhere`; on others nothing. Collective.

        Entries are plain values and host tensors. An error on one rank is raised on all ranks. Raises DeadlineError or
        TransportError if a rank does not take part: a framework that calls this on one rank only cannot save it.
        """
        group = choose_process_group(self._process_group, "gathered")
        entries: dict[str, Any] = {}
        failed = None
        try:
            entries = to_entries(scoped_state(self._state, self._scope))
        except ThcError as error:
            failed = error
        with closing(Communicators(group, self._deadline_s).for_caller()) as communicator:
            headers = _headers(communicator, group.size(), entries, failed)
            kept = range(group.size()) if self._everywhere or group.rank() == 0 else ()
            return _gather(communicator, headers, entries, kept)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Load the result of rank 0's state_dict(), from any number of ranks; collective, as load()."""
        if not any(name.endswith(_HEADER) for name in saved):
            what = "the state of one rank" if "worker" in saved else "no state that gathered(...).state_dict() has made"
            raise ConfigurationError(
                f"this is {what}: save gathered(state) of byteps_thc.checkpoint, by rank 0, and load that on all ranks"
            )
        take_over(self._state, lambda: SavedInMemory(saved), self._scope, None, True, self._process_group)


def gathered(
    state: CompressionState,
    *,
    scope: str | None = None,
    process_group: dist.ProcessGroup | None = None,
    everywhere: bool = False,
    deadline_s: float = 600.0,
) -> Gathered:
    """Return an object for frameworks that save on one rank, such as Accelerate and Lightning.

        accelerator.register_for_checkpointing(gathered(state))

    state: state of checkpointable().
    scope: scope of checkpointable(), default: none.
    process_group: the ranks of the state, default: all ranks.
    everywhere: gather on all ranks, for frameworks that save a file on each host; default False: on rank 0.
    deadline_s: seconds of each wait for another rank, default 600.

    Its state_dict() collects the parts of all ranks in host memory: with error feedback 4 bytes per parameter of each
    rank. The framework must call it on all ranks.
    """
    require_state(state, "gathered")
    return Gathered(state, scope, process_group, everywhere=everywhere, deadline_s=deadline_s)


def _headers(
    communicator: Communicator, ranks: int, entries: Mapping[str, Any], failed: ThcError | None
) -> list[tuple[str, str]]:
    """Return name and value of every rank's header; raise this rank's error, or name another's."""
    own = [(name, value) for name, value in entries.items() if not isinstance(value, Tensor)]
    mine = {"error": str(failed)} if failed is not None else {"header": own[0]}
    everyone = [json.loads(text) for text in gather_over(communicator, ranks)(json.dumps(mine).encode())]
    if failed is not None:
        raise failed
    for rank, theirs in enumerate(everyone):
        if "error" in theirs:
            raise CheckpointError(f"rank {rank} could not save its state: {theirs['error']}")
    return [(str(name), str(value)) for name, value in (theirs["header"] for theirs in everyone)]


def _gather(
    communicator: Communicator, headers: list[tuple[str, str]], entries: Mapping[str, Any], kept: range | tuple[()]
) -> dict[str, Any]:
    """Return the entries of the ranks `kept`: tensors travel one after another, as bytes, in slices."""
    described = [Header.from_json(value, name).entries(name.removesuffix(_HEADER)) for name, value in headers]
    lengths = [sum(_bytes(saved) for saved in residuals.values()) for residuals in described]
    own = [bytes_of(value) for value in entries.values() if isinstance(value, Tensor)]
    mine = torch.cat(own) if own else torch.empty(0, dtype=torch.uint8, device="cpu")
    received = {rank: torch.empty(lengths[rank], dtype=torch.uint8, device="cpu") for rank in kept}
    for first in range(0, max(lengths), _SLICE_BYTES):
        size = min(_SLICE_BYTES, max(lengths) - first)
        piece = torch.zeros(size, dtype=torch.uint8, device="cpu")
        part = mine[first : first + size]
        piece[: len(part)] = part
        everyone = torch.empty(len(headers) * size, dtype=torch.uint8, device="cpu")
        communicator.all_gather(everyone, piece).wait()
        for rank, memory in received.items():
            place = memory[first : first + size]
            place.copy_(everyone.view(len(headers), size)[rank, : len(place)])
    result: dict[str, Any] = {}
    for rank in kept:
        name, value = headers[rank]
        if name in result:
            raise ConfigurationError(
                f"several ranks have an entry {name!r}: give scope=..., a name for the ranks of this state that no "
                "others use"
            )
        result[name] = value
        memory, start = received.pop(rank), 0
        for entry, saved in described[rank].items():
            result[entry] = memory[start : start + _bytes(saved)].clone().view(torch.float32)
            start += _bytes(saved)
    return result


def _bytes(saved: SavedTensor) -> int:
    return saved.elements * torch.float32.itemsize
