"""Ranks that should have the same parameters: comparing them, and copying one rank's to all."""

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._net.communicator import Communicator, Waitable
from byteps_thc._net.groups import Communicators
from byteps_thc._net.handshake import first_difference, gather_by_rank, gather_over

_SLICE_BYTES = 16 << 20
_SLICES_IN_FLIGHT = 8
_LENGTH_BYTES = 8


class Replicas(Protocol):
    """Ranks that all call the same methods in the same order; these may raise TransportError or DeadlineError."""

    rank: int
    world_rank: int
    """this process's number among all, used in errors"""
    is_root: bool
    size: int
    synchronized: bool = False
    """whether the replicas are synchronized by a ParameterSynchronizer, now or earlier"""

    def gather(self, text: bytes) -> list[bytes]:
        """Return the texts of all ranks, without trailing spaces."""

    def broadcast_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite tensors by the root's, bit for bit. The same names, shapes and dtypes on all ranks."""

    def broadcast_bytes(self, data: bytes) -> bytes:
        """Return the root's `data`; the other ranks' is ignored."""


class RankReplicas(Replicas):
    """The ranks of a process group (gloo or NCCL), with rank 0 as root.

    deadline_s: of each wait. The first call connects them, and raises the errors of Communicators.
    """

    def __init__(self, process_group: dist.ProcessGroup, deadline_s: float) -> None:
        self.rank, self.size = process_group.rank(), process_group.size()
        self.world_rank, self.is_root = dist.get_rank(), self.rank == 0
        self._process_group, self._deadline_s = process_group, deadline_s

    @cached_property
    def _communicator(self) -> Communicator:
        return Communicators(self._process_group, self._deadline_s).for_caller()

    @override
    def gather(self, text: bytes) -> list[bytes]:
        return gather_over(self._communicator, self.size)(text)

    @override
    def broadcast_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        in_flight: deque[Waitable] = deque()
        for tensor in tensors.values():
            if tensor.numel() == 0:
                continue
            data = bytes_of(tensor)
            for first in range(0, len(data), _SLICE_BYTES):
                in_flight.append(self._communicator.broadcast(data[first : first + _SLICE_BYTES]))
                if len(in_flight) == _SLICES_IN_FLIGHT:
                    in_flight.popleft().wait()
            if data.data_ptr() != tensor.data_ptr():  # copy back now: copies of all tensors would take too much memory
                _wait(in_flight)
                put_bytes(data, tensor)
        _wait(in_flight)

    @override
    def broadcast_bytes(self, data: bytes) -> bytes:
        length = torch.frombuffer(bytearray(len(data).to_bytes(_LENGTH_BYTES, "little")), dtype=torch.uint8)
        self._communicator.broadcast(length).wait()
        size = int.from_bytes(bytes(length.tolist()), "little")
        if size == 0:
            return b""
        received = bytearray(data if self.is_root else size)
        self._communicator.broadcast(torch.frombuffer(received, dtype=torch.uint8)).wait()
        return bytes(received)


def require_same_lines(replicas: Replicas, lines: Sequence[str], what: str) -> None:
    """Raise ConfigurationError on all ranks, naming the first line that differs, unless all pass the same lines.

    what: name of the lines in the error. Collective; raises the errors of Replicas.
    """
    prints = replicas.gather(hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16].encode())
    if len(set(prints)) > 1:
        texts = gather_by_rank(replicas.gather, "\n".join(lines), replicas.world_rank)
        raise ConfigurationError(f"ranks have different {what}: {first_difference(texts)[1]}")


def bytes_of(tensor: Tensor) -> Tensor:
    """Return a tensor's bytes, uint8[nbytes] on the host: the same memory if it is contiguous and on the host."""
    return tensor.detach().contiguous().cpu().view(-1).view(torch.uint8)


def put_bytes(data: Tensor, tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(data.view(tensor.dtype).view(tensor.shape))


def _wait(in_flight: deque[Waitable]) -> None:
    while in_flight:
        in_flight.popleft().wait()
