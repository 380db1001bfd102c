"""Messages among ranks: to the owners of shards in one all-to-all, and from the owners in one all-gather."""

import threading
from bisect import bisect_left, insort

import torch
from torch import Tensor

from byteps_thc._net.communicator import Communicator, Waitable
from byteps_thc._net.transport import TrafficRecorder


class RankMessages:
    """Memory for messages, and the two collectives. to_owners, of_owners: may be the same if one thread starts both.

    device: of the messages. Memory is lent for a round: pieces of all sizes share it.
    """

    def __init__(
        self,
        to_owners: Communicator,
        of_owners: Communicator,
        recorder: TrafficRecorder,
        ranks: int,
        device: torch.device,
    ) -> None:
        self._to_owners, self._of_owners = to_owners, of_owners
        self._recorder, self.ranks, self._device = recorder, ranks, device
        self._lock = threading.Lock()  # guards the next two
        self._free = list[Tensor]()  # by size
        self._lent = dict[int, Tensor]()  # by address

    def take(self, size_bytes: int) -> Tensor:
        """Return memory for a message of every rank, uint8[ranks, size_bytes], with any content."""
        size = self.ranks * size_bytes
        with self._lock:
            at = min(bisect_left(self._free, size, key=Tensor.numel), len(self._free) - 1)
            memory = self._free.pop(at) if self._free else None
            if memory is None or memory.numel() < size:  # no free memory is larger: larger memory replaces it
                # Zeros: the padding of messages must not leak another object's memory.
                memory = torch.zeros(size, dtype=torch.uint8, device=self._device)
            self._lent[memory.data_ptr()] = memory
        return memory[:size].view(self.ranks, size_bytes)

    def give_back(self, memory: Tensor) -> None:
        with self._lock:
            insort(self._free, self._lent.pop(memory.data_ptr()), key=Tensor.numel)

    def all_to_all(self, received: Tensor, sent: Tensor) -> Waitable:
        """Start sending message r to rank r; received[r] comes from rank r."""
        self._recorder.add_collective(sent.numel(), self.ranks)
        return self._to_owners.all_to_all(received.view(-1), sent.view(-1))

    def all_to_all_apart(self, received: Tensor, sent: Tensor, header_bytes: int) -> tuple[Waitable, Waitable]:
        """As all_to_all(), in host memory, in two works: the headers, which arrive even if another rank's messages have
        another size, and the rest, which arrives from no rank then.
        """
        self._recorder.add_collective(sent.numel(), self.ranks)
        at = header_bytes
        headers = self._to_owners.all_to_all(received[:, :at], sent[:, :at])
        return headers, self._to_owners.all_to_all(received[:, at:], sent[:, at:])

    def all_gather(self, gathered: Tensor, own: Tensor) -> Waitable:
        """Start sending a message to all; gathered[r] comes from rank r. own: not in `gathered`."""
        self._recorder.add_collective(gathered.numel(), self.ranks)
        return self._of_owners.all_gather(gathered.view(-1), own)
