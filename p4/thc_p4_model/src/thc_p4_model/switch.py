"""Common base of both architectures' switches: the queue of packets in flight, limits, statistics."""

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from thc_p4_model.control import ControlPlane
from thc_p4_model.errors import PacketError, PacketLoopError
from thc_p4_model.interfaces import P4Error, ParserError, ProgramInstance

Output = tuple[int, bytes]
"""(port, frame)."""
ErrorHandler = Callable[[Exception], None]
"""Takes an error of the program (one of PROGRAM_ERRORS) that cost a packet."""
PROGRAM_ERRORS = (P4Error, PacketError, ParserError)
ArrivalKind = Literal["new", "recirculated", "resubmitted"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A packet waiting for ingress."""

    port: int
    data: bytes
    kind: ArrivalKind = "new"
    passes: int = 0
    """Passes through ingress so far."""
    carried: Any = None
    """The architecture's state that travels with a recirculated or resubmitted packet."""


@dataclass
class Statistics:
    """Packets, since the switch started."""

    received: int = 0
    sent: int = 0
    dropped: int = 0
    """Packets that the program dropped, or that had nowhere to go."""
    parser_errors: int = 0
    recirculated: int = 0
    recirculation_overflows: int = 0
    """Dropped because too many packets were recirculating."""
    resubmitted: int = 0
    cloned: int = 0
    program_errors: int = 0
    """Passes that ended with an error of the program, such as an index past the end of a register."""


class Switch(ControlPlane):
    """A switch running a P4 program. One thread moves packets; the control plane may use others."""

    def __init__(
        self,
        instances: Sequence[ProgramInstance],
        *,
        max_passes: int = 64,
        recirculation_capacity: int = 1024,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """max_passes: a packet in need of more raises PacketLoopError. recirculation_capacity: packets."""
        super().__init__(instances)
        self.statistics = Statistics()
        self._max_passes = max_passes
        self._capacity = recirculation_capacity
        self._clock_ns = clock_ns
        self._start_ns = clock_ns()
        self._queue: deque[Arrival] = deque()
        self._recirculating = 0

    def process(self, port: int, frame: bytes, on_error: ErrorHandler | None = None) -> list[Output]:
        """Run a frame, and everything in flight, until the switch is quiet. Returns the sent packets in order.

        Errors of the program are raised and nothing stays in flight; with `on_error` they cost only the packet of that
        pass.
        """
        with self.lock:
            self.inject(port, frame)
            return self.drain(on_error)

    def drain(self, on_error: ErrorHandler | None = None) -> list[Output]:
        """Run everything in flight; errors as for `process`."""
        outputs: list[Output] = []
        with self.lock:
            try:
                while self._queue:
                    try:
                        outputs += self.step()
                    except PROGRAM_ERRORS as error:
                        self.statistics.program_errors += 1
                        if on_error is None:
                            raise
                        on_error(error)
            except BaseException:
                self._queue.clear()
                self._recirculating = 0
                raise
        return outputs

    def inject(self, port: int, frame: bytes) -> None:
        """Queue a frame behind the packets in flight; `step` runs them one pass at a time."""
        with self.lock:
            self._check_port(port)
            self.statistics.received += 1
            self._queue.append(Arrival(port, frame))

    def step(self) -> list[Output]:
        """One pass of the packet at the head of the queue: ingress, and egress of its copies."""
        with self.lock:
            if not self._queue:
                return []
            arrival = self._queue.popleft()
            if arrival.kind == "recirculated":
                self._recirculating -= 1
            outputs = self._run(arrival)
            self.statistics.sent += len(outputs)
            return outputs

    def lose(self) -> bool:
        """Drop the packet at the head of the queue, as a full recirculation queue does. Returns False if empty."""
        with self.lock:
            if not self._queue:
                return False
            if self._queue.popleft().kind == "recirculated":
                self._recirculating -= 1
            self.statistics.recirculation_overflows += 1
            return True

    @property
    def in_flight(self) -> int:
        """Packets waiting for a pass."""
        return len(self._queue)

    @abstractmethod
    def _run(self, arrival: Arrival) -> list[Output]:
        """Ingress and egress of one packet; queues recirculating ones."""

    def _check_port(self, port: int) -> None:
        """ControlError when the switch has no such port."""

    def _return_to_ingress(self, port: int, data: bytes, kind: ArrivalKind, passes: int, carried: Any = None) -> None:
        """Queue a packet for another pass, or drop it when the recirculation queue is full."""
        if passes >= self._max_passes:
            raise PacketLoopError(f"a packet needs more than {self._max_passes} passes, the last through port {port}")
        if kind == "recirculated":
            if self._recirculating >= self._capacity:
                self.statistics.recirculation_overflows += 1
                return
            self._recirculating += 1
            self.statistics.recirculated += 1
        else:
            self.statistics.resubmitted += 1
        self._queue.append(Arrival(port, data, kind, passes, carried))

    def _now_ns(self) -> int:
        return self._clock_ns() - self._start_ns
