"""Runs a switch between ports: the slow software switch."""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Iterable, Mapping

from p4.model.errors import ControlError
from p4.model.ports import Port
from p4.model.switch import Output, Switch

POLL_S = 0.05
"""How late a stop may be noticed."""
BURST = 32
"""Frames taken from one port before the others get their turn."""


class PortLoop:
    """Moves frames between ports and a switch, in one thread. Other threads may use the switch's control plane."""

    def __init__(self, switch: Switch, ports: Mapping[int, Port]) -> None:
        """ports: by the switch's port number. Frames to other ports are counted in `unconnected`."""
        if not ports:
            raise ControlError("a software switch needs at least one port")
        self.unconnected = 0
        self._switch = switch
        self._ports = dict(ports)
        self._inner = {number: port for number, port in self._ports.items() if port.fileno() is None}

    def run(self, stop: threading.Event, duration_s: float | None = None) -> None:
        """Until `stop` is set or the time is over. Errors of the program (P4Error, PacketError) end it."""
        deadline = None if duration_s is None else time.monotonic() + duration_s
        with selectors.DefaultSelector() as selector:
            for number, port in self._ports.items():
                if number not in self._inner:
                    selector.register(port, selectors.EVENT_READ, number)  # type: ignore[arg-type]
            while not stop.is_set() and (deadline is None or time.monotonic() < deadline):
                for key, _ in selector.select(POLL_S):
                    self._receive(key.data)

    def _receive(self, number: int) -> None:
        port = self._ports[number]
        for _ in range(BURST):
            frame = port.receive()
            if frame is None:
                return
            self._send(self._switch.process(number, frame))
            self._answer_inner()

    def _answer_inner(self) -> None:
        """Take in what the functions behind function ports answered, until they are quiet."""
        pending = True
        while pending:
            pending = False
            for number, port in self._inner.items():
                while (frame := port.receive()) is not None:
                    pending = True
                    self._send(self._switch.process(number, frame))

    def _send(self, outputs: Iterable[Output]) -> None:
        for number, frame in outputs:
            port = self._ports.get(number)
            if port is None:
                self.unconnected += 1
            else:
                port.send(frame)
