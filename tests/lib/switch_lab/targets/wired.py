"""Switches that are other processes: frames go over veth pairs, and a fence tells when a frame has been dealt with."""

import dataclasses
import itertools
import os
import select
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from scapy.layers.inet import UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet
from thc_scapy import TYPES, Thc

from switch_lab.jobs import CODES_PER_PACKET, Job
from switch_lab.targets.switch import SwitchTarget
from switch_lab.targets.target import PortFrame
from thc_switch.description import Deployment
from thc_switch.status import SwitchStatus

ETH_P_ALL, PACKET_OUTGOING = 3, 4
SOL_PACKET, PACKET_AUXDATA = 263, 8
#: struct tpacket_auxdata of linux/if_packet.h: status, len, snaplen, mac, net, vlan_tci, vlan_tpid
AUXDATA = struct.Struct("=IIIHHHH")
TP_STATUS_VLAN_VALID = 1 << 4
FENCE_JOB = 0xFEFE
FENCE_TIMEOUT_S = 5.0
#: The agent's port has no part in the fence.
AGENT_SETTLE_S = 0.05
SETTLE_S = 0.001


class Wires:
    """Raw sockets, one per port, on the host's ends of the cables."""

    def __init__(self, interfaces: Mapping[int, str]) -> None:
        self._sockets: dict[int, socket.socket] = {}
        for port, interface in interfaces.items():
            raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            raw.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
            raw.bind((interface, 0))
            self._sockets[port] = raw

    def send(self, port: int, frame: bytes) -> None:
        self._sockets[port].send(frame)

    def receive(self, timeout_s: float) -> list[PortFrame]:
        """Return the frames that have arrived, or the first within the timeout."""
        ready, _, _ = select.select(list(self._sockets.values()), [], [], timeout_s)
        frames = []
        for port, raw in self._sockets.items():
            if raw in ready:
                frame, ancillary, _, address = raw.recvmsg(65536, socket.CMSG_SPACE(AUXDATA.size))
                if address[2] != PACKET_OUTGOING:
                    frames.append((port, _with_vlan_tag(frame, ancillary)))
        return frames

    def close(self) -> None:
        for raw in self._sockets.values():
            raw.close()


def _with_vlan_tag(frame: bytes, ancillary: list[Any]) -> bytes:
    """Put back the tag that the kernel takes out of frames."""
    for level, kind, data in ancillary:
        if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
            status, _, _, _, _, tci, tpid = AUXDATA.unpack(data[: AUXDATA.size])
            if status & TP_STATUS_VLAN_VALID:
                return frame[:12] + struct.pack("!HH", tpid, tci) + frame[12:]
    return frame


class WiredTarget(SwitchTarget):
    """A switch behind cables. Its fence is a job of one worker per front port that completes with every packet.

    A fence packet takes all passes, and leaves by all front ports behind all that an earlier frame has caused.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._fence = Job.make(FENCE_JOB, len(self.front_ports), self.front_ports, quorum=1, slots=2)
        self._fences = 0
        self._nonces = itertools.count(time.time_ns())
        self._wires: Wires | None = None

    @property
    def wires(self) -> Wires:
        assert self._wires is not None, "not started"
        return self._wires

    def connect(self, interfaces: Mapping[int, str]) -> None:
        """Open the host's ends: front ports and CPU port."""
        self._wires = Wires(interfaces)

    def close(self) -> None:
        if self._wires is not None:
            self._wires.close()

    def describe(self, jobs: Sequence[Job]) -> Deployment:
        self._fence = dataclasses.replace(self._fence, thc=jobs[0].thc if jobs else self._fence.thc, epoch=0)
        return super().describe([*jobs, self._fence])

    def install(self, jobs: Sequence[Job]) -> None:
        super().install(jobs)
        worker = self._fence.workers[0]
        hello = bytes(self._fence.hello(worker, next(self._nonces)))
        to_cpu = self._exchange_with_fence(worker.switch_port, hello, TYPES["hello"], {self.cpu_port})
        (answer,) = self.answers_of_agent(to_cpu)
        welcome = self._exchange_with_fence(self.cpu_port, answer, TYPES["welcome"], {worker.switch_port})
        self._fence = self._fence.with_epoch(Ether(welcome[-1][1])[Thc].epoch)

    def run_frame(self, port: int, frame: bytes) -> list[PortFrame]:
        self.wires.send(port, frame)
        sender = next((worker for worker in self._fence.workers if worker.switch_port == port), self._fence.workers[0])
        self._fences += 1
        fence = self._fence.codes(sender, np.zeros(CODES_PER_PACKET, np.uint8), slot=1, round=self._fences)
        sent = self._exchange_with_fence(sender.switch_port, bytes(fence), TYPES["aggregate"], set(self.front_ports))
        while more := self.wires.receive(SETTLE_S if _is_for_slots(frame) else AGENT_SETTLE_S):
            sent += more
        return [(out, data) for out, data in sent if not _is_fence(data, TYPES["aggregate"])]

    def status(self) -> SwitchStatus:
        status = super().status()
        reasons = status.reasons | {"completed": status.reasons["completed"] - self._fences}
        return dataclasses.replace(status, jobs=status.jobs[:-1], reasons=reasons)

    def _exchange_with_fence(self, port: int, frame: bytes, message_type: int, ports: set[int]) -> list[PortFrame]:
        """Send a frame of the fence; return all frames up to its answers, one at each of the ports."""
        self.wires.send(port, frame)
        received: list[PortFrame] = []
        missing = set(ports)
        deadline = time.monotonic() + FENCE_TIMEOUT_S
        while missing:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"{self.name}: no answer at ports {missing} within {FENCE_TIMEOUT_S:g} s")
            news = self.wires.receive(left_s)
            received += news
            missing -= {out for out, data in news if _is_fence(data, message_type)}
        return received


def _thc_of(frame: bytes) -> Packet | None:
    packet = Ether(frame)
    return packet[Thc] if UDP in packet and Thc in packet else None


def _is_fence(frame: bytes, message_type: int) -> bool:
    thc = _thc_of(frame)
    return thc is not None and (thc.job_id, thc.message_type) == (FENCE_JOB, message_type)


def _is_for_slots(frame: bytes) -> bool:
    thc = _thc_of(frame)
    return thc is None or thc.message_type in (TYPES["norm"], TYPES["codes"])


class Cables:
    """veth pairs. The switch's ends are named PREFIX + PORT + "s", the host's PREFIX + PORT + "h"."""

    def __init__(self, prefix: str, ports: Sequence[int]) -> None:
        self._prefix = prefix
        self.ports = tuple(ports)
        try:
            for port in ports:
                self._lay(port)
        except BaseException:
            self.remove()
            raise

    def switch_end(self, port: int) -> str:
        return f"{self._prefix}{port}s"

    def host_end(self, port: int) -> str:
        return f"{self._prefix}{port}h"

    def remove(self) -> None:
        for port in self.ports:
            with suppress(subprocess.CalledProcessError):
                _ip("link", "delete", self.host_end(port))

    def _lay(self, port: int) -> None:
        ends = (self.host_end(port), self.switch_end(port))
        _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for end in ends:
            # Without IPv6 the kernel sends nothing of its own over the cable.
            Path(f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6").write_text("1")
            _ip("link", "set", end, "mtu", "9000", "up")


def why_no_cables() -> str | None:
    """Return the reason why veth interfaces or raw sockets are missing; None: they work."""
    if os.geteuid() != 0:
        return "needs root for veth interfaces"
    return None if shutil.which("ip") else "ip (iproute2) is not on PATH"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=10)
