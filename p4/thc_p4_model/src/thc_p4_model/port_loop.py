"""Runs a switch between ports: the slow software switch."""

import logging
import selectors
import threading
import time
from collections.abc import Iterable, Mapping

from thc_p4_model.errors import ControlError
from thc_p4_model.interfaces import P4Error
from thc_p4_model.ports import Port
from thc_p4_model.switch import Output, Switch

LOG = logging.getLogger("thc_p4_model")
POLL_S = 0.05
"""How late a stop may be noticed."""
BURST = 32
"""Frames taken from one port before the others get their turn."""


class PortLoop:
    """Moves frames between ports and a switch, in one thread. Other threads may use the switch's control plane."""

    def __init__(self, switch: Switch, ports: Mapping[int, Port], *, strict: bool = False) -> None:
        """ports: by the switch's port number. Frames to other ports are counted in `unconnected`.

        strict: an error of the program (P4Error, PacketError, ParserError) ends `run`. Otherwise it costs one packet,
        is counted in `statistics.program_errors` of the switch, and logged once per place in the program.
        """
        if not ports:
            raise ControlError("a software switch needs at least one port")
        self.unconnected = 0
        self._switch = switch
        self._on_error = None if strict else self._program_error
        self._logged: set[str] = set()
        self._ports = dict(ports)
        self._inner = [number for number, port in self._ports.items() if port.fileno() is None]

    def run(self, stop: threading.Event, duration_s: float | None = None) -> None:
        """Until `stop` is set or the time is over."""
        deadline = None if duration_s is None else time.monotonic() + duration_s
        busy = False
        with selectors.DefaultSelector() as selector:
            for number, port in self._ports.items():
                if number not in self._inner:
                    selector.register(port, selectors.EVENT_READ, number)  # type: ignore[arg-type]
            while not stop.is_set() and (deadline is None or time.monotonic() < deadline):
                for key, _ in selector.select(0 if busy else POLL_S):
                    self._receive(key.data)
                busy = False
                for number in self._inner:
                    busy |= self._receive(number)

    def _receive(self, number: int) -> bool:
        """Take in at most a burst of frames; whether there may be more."""
        port = self._ports[number]
        for _ in range(BURST):
            frame = port.receive()
            if frame is None:
                return False
            self._send(self._switch.process(number, frame, self._on_error))
        return True

    def _send(self, outputs: Iterable[Output]) -> None:
        for number, frame in outputs:
            port = self._ports.get(number)
            if port is None:
                self.unconnected += 1
            else:
                port.send(frame)

    def _program_error(self, error: Exception) -> None:
        place = f"{error.path}:{error.line}" if isinstance(error, P4Error) else type(error).__name__
        if place not in self._logged:
            self._logged.add(place)
            LOG.error("a packet was dropped: %s; more of this kind are only counted", error)
