"""Hosts of a row with delay and loss, whose frames a relay passes on (frame_relay.py)."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from congestion.control import Controls, Words
from congestion.frame_relay import INTERFACE, mac_of
from congestion.rows import RANKS, Row
from thc_lab import fork_server
from thc_lab.namespaces import Namespaces
from thc_lab.shaped_network import run_inside

_NETWORK = "10.79.0.0/24"
_ANSWER_S = 10.0
#: Frames that a TAP device keeps while the relay is not run.
_TAP_FRAMES = 20_000


@dataclass(frozen=True)
class RelayedHost:
    """A namespace with eth0."""

    namespace: str
    ip: str


class RelayedRows:
    """The workers' hosts, and last the server's; a context manager. Raises ConfigurationError without root."""

    def __init__(self) -> None:
        self._namespaces = Namespaces()
        self._folder = tempfile.TemporaryDirectory()
        self.hosts = [
            RelayedHost(self._namespaces.add(f"far{number}"), f"10.79.0.{1 + number}") for number in range(RANKS + 1)
        ]
        control = Path(self._folder.name) / "control"
        self._controls = Controls(control, 1)
        self._log = Path(self._folder.name) / "relay.log"
        self._process = fork_server.start_program(
            Path(__file__).with_name("frame_relay.py"),
            *("--control", str(control), *(host.namespace for host in self.hosts)),
            environment=os.environ,
            log=self._log,
        )

    def __enter__(self) -> Self:
        try:
            self._controls.accept()
            for number, host in enumerate(self.hosts):
                self._connect(number, host)
        except BaseException:
            print(self._log.read_text(errors="replace"))
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._controls.close()
        self._process.kill()
        self._process.wait(_ANSWER_S)
        self._namespaces.__exit__()
        self._folder.cleanup()

    def shape(self, row: Row) -> None:
        """See measuring.Network."""
        self._ask(
            "shape",
            bits_per_s=row.bits_per_s,
            queue_bytes=row.queue_bytes,
            delay_s=row.round_trip_s / 2,
            loss=row.loss,
        )

    def unshape(self) -> None:
        """See measuring.Network."""
        self._ask("unshape")

    def drops(self) -> int:
        """See measuring.Network; random losses are not counted."""
        drops: int = self._ask("counts")["drops"]
        return drops

    def sent_bytes(self, host: int) -> int:
        """See measuring.Network."""
        sent: int = self._ask("counts")["sent_bytes"][host]
        return sent

    def _ask(self, command: str, **words: object) -> Words:
        [answer] = self._controls.ask(command, _ANSWER_S, **words)
        return answer

    @staticmethod
    def _connect(number: int, host: RelayedHost) -> None:
        mac = mac_of(number).hex(":")
        link = ("ip", "link", "set", "dev", INTERFACE)
        run_inside(host.namespace, *link, "addrgenmode", "none")
        run_inside(host.namespace, *link, "address", mac, "txqueuelen", str(_TAP_FRAMES), "up")
        run_inside(host.namespace, "ip", "address", "add", f"{host.ip}/24", "dev", INTERFACE)
        # Linux's default, as in shaped_network.py, whatever this machine's own setting is.
        run_inside(host.namespace, "ip", "route", "replace", _NETWORK, "dev", INTERFACE, "congctl", "cubic")
