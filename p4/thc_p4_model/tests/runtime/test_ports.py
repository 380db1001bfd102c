import array
import fcntl
import itertools
import os
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest

from thc_p4_model import compile_program
from thc_p4_model.architectures import V1ModelSwitch
from thc_p4_model.checksums import csum16
from thc_p4_model.errors import ControlError
from thc_p4_model.interfaces import P4Error
from thc_p4_model.port_loop import PortLoop
from thc_p4_model.ports import (
    SIOCETHTOOL,
    FunctionPort,
    InterfacePort,
    PortStatistics,
    UdpPort,
    disable_receive_merging,
    udp_datagram,
    udp_frame,
)

PROGRAMS = Path(__file__).parent / "programs"
MAC = bytes.fromhex("020000000001")
HEADERS_BYTES = 42


def test_a_datagram_becomes_a_frame_and_back():
    frame = udp_frame(MAC, ("10.0.0.1", 48865), ("10.0.0.9", 5000), b"payload")
    assert frame[:12] == MAC + bytes.fromhex("0200 0a000009")
    assert csum16(frame[14:34]) == 0
    assert len(frame) == HEADERS_BYTES + 7
    # Bytes beyond UDP's length are Ethernet padding.
    assert udp_datagram(frame + b"\0\0") == (b"payload", ("10.0.0.1", 48865))


@pytest.mark.parametrize("flags", [b"\x20\x00", b"\x00\x01"])
def test_fragments_are_not_datagrams(flags):
    frame = udp_frame(MAC, ("10.0.0.1", 48865), ("10.0.0.9", 5000), b"payload")
    assert udp_datagram(frame[:20] + flags + frame[22:]) is None


@pytest.mark.parametrize("length", [0, 7, 16, 65535])
def test_frames_that_do_not_hold_their_udp_length_are_not_datagrams(length):
    frame = udp_frame(MAC, ("10.0.0.1", 48865), ("10.0.0.9", 5000), b"payload")
    assert udp_datagram(frame[:38] + length.to_bytes(2, "big") + frame[40:]) is None


@pytest.mark.parametrize("frame", [b"", MAC + MAC + b"\x08\x06" + bytes(28), MAC + MAC + b"\x08\x00\x46" + bytes(40)])
def test_other_frames_are_not_datagrams(frame):
    assert udp_datagram(frame) is None


@pytest.fixture
def forwarder():
    """Forwards everything from port 1 to port 0, whatever the packet is."""
    return V1ModelSwitch(compile_program(PROGRAMS / "v1model_commands.p4"))


def run_in_thread(loop: PortLoop, stop: threading.Event) -> threading.Thread:
    thread = threading.Thread(target=loop.run, args=(stop, 20), daemon=True)
    thread.start()
    return thread


def test_datagrams_through_a_switch_and_a_function_behind_a_port(forwarder):
    """UDP port 3 -> switch -> port 0, whose function swaps the addresses -> switch -> UDP."""

    def swap(frame: bytes) -> list[bytes]:
        # The program's command byte is the first of the MAC address; index 3 goes to port 3.
        return [b"\0\3" + frame[2:26] + frame[30:34] + frame[26:30] + frame[36:38] + frame[34:36] + frame[38:]]

    forwarder.table_add("ports", [3], "to_port", [3])
    udp = UdpPort("127.0.0.1", 0, bytes(6))
    cpu = FunctionPort(swap)
    stop = threading.Event()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as worker:
        worker.settimeout(10)
        worker.bind(("127.0.0.1", 0))
        thread = run_in_thread(PortLoop(forwarder, {3: udp, 0: cpu}), stop)
        try:
            for number in range(5):
                worker.sendto(b"packet %d" % number, udp.address)
                assert worker.recvfrom(2048) == (b"packet %d" % number, udp.address)
        finally:
            stop.set()
            thread.join(timeout=10)
            udp.close()
    assert not thread.is_alive()
    assert (udp.statistics.received, udp.statistics.sent) == (5, 5)
    assert (cpu.statistics.received, cpu.statistics.sent) == (5, 5)


def test_frames_to_ports_that_are_not_there_are_counted(forwarder):
    forwarder.table_set_default("ports", "to_port", [9])
    udp = UdpPort("127.0.0.1", 0, bytes(6))
    loop = PortLoop(forwarder, {3: udp})
    stop = threading.Event()
    thread = run_in_thread(loop, stop)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as worker:
        worker.sendto(b"x", udp.address)
        deadline = time.monotonic() + 10
        while not loop.unconnected and time.monotonic() < deadline:
            time.sleep(0.01)
    stop.set()
    thread.join(timeout=10)
    udp.close()
    assert loop.unconnected == 1


def test_the_loop_ends_with_its_time(forwarder):
    udp = UdpPort("127.0.0.1", 0, bytes(6))
    start = time.monotonic()
    PortLoop(forwarder, {3: udp}).run(threading.Event(), duration_s=0.2)
    udp.close()
    assert 0.2 <= time.monotonic() - start < 60


class Frames:
    """A port with waiting frames, and its sent frames."""

    def __init__(self, *frames: bytes) -> None:
        self._reader, self._writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._reader.setblocking(False)
        self.statistics = PortStatistics()
        self.sent: list[bytes] = []
        for each in frames:
            self._writer.send(each)

    def fileno(self) -> int:
        return self._reader.fileno()

    def receive(self) -> bytes | None:
        try:
            return self._reader.recv(2048)
        except BlockingIOError:
            return None

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


@pytest.fixture
def wrong_then_right():
    """Frames of v1model_commands.p4: indices past the register's end, a packet that loops for ever, a good one."""
    commands = ((8, 9), (8, 9), (10, 1), (0, 1))
    port = Frames(*(bytes((command, index)) + bytes(14) for command, index in commands))
    yield port
    port.close()


def test_errors_of_the_program_cost_one_packet_each(forwarder, wrong_then_right, caplog):
    PortLoop(forwarder, {0: wrong_then_right}).run(threading.Event(), duration_s=0.3)
    assert wrong_then_right.sent == [bytes((0, 1)) + bytes(14)]
    assert forwarder.statistics.program_errors == 3
    assert len(caplog.messages) == 2  # one for each place in the program
    assert "v1model_commands.p4:" in caplog.messages[0]


def test_a_strict_loop_ends_with_the_first_error(forwarder, wrong_then_right):
    with pytest.raises(P4Error, match="index 9 is outside"):
        PortLoop(forwarder, {0: wrong_then_right}, strict=True).run(threading.Event(), duration_s=10)


def test_a_function_that_always_answers_does_not_keep_the_loop(forwarder):
    port = Frames(bytes(16))
    start = time.monotonic()
    PortLoop(forwarder, {1: port, 0: FunctionPort(lambda frame: [frame])}).run(threading.Event(), duration_s=0.3)
    port.close()
    assert forwarder.statistics.received > 10
    assert time.monotonic() - start < 60


def test_a_function_that_fails_costs_its_answer_only(forwarder, caplog):
    port = Frames(bytes(16), bytes(16))
    cpu = FunctionPort(lambda _: 1 / 0)
    PortLoop(forwarder, {1: port, 0: cpu}).run(threading.Event(), duration_s=0.3)
    port.close()
    assert (cpu.statistics.sent, cpu.statistics.send_errors) == (2, 2)
    assert "the function behind a port failed" in caplog.messages


def test_answers_nobody_takes_are_lost():
    cpu = FunctionPort(lambda frame: [frame] * 5000)
    cpu.send(b"x")
    assert cpu.statistics.receive_errors == 5000 - 4096
    assert cpu.receive() == b"x"


def test_a_loop_needs_ports(forwarder):
    with pytest.raises(ControlError, match="at least one port"):
        PortLoop(forwarder, {})


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="veth interfaces need root")


def wait_until_up(interface: str) -> None:
    """The kernel begins to send a moment after the other end came up; until then it drops, and says nothing."""
    deadline = time.monotonic() + 30
    command = ["ip", "-o", "link", "show", interface]
    while " state UP " not in subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout:
        assert time.monotonic() < deadline, f"{interface} does not come up"
        time.sleep(0.01)


@pytest.fixture
def cables():
    """Two veth pairs: the switch's ends and the hosts' ends."""
    pairs = [(f"thcsw{number}-{os.getpid() % 10000}", f"thch{number}-{os.getpid() % 10000}") for number in (1, 2)]
    try:
        for inner, outer in pairs:
            subprocess.run(["ip", "link", "add", inner, "type", "veth", "peer", "name", outer], check=True, timeout=10)
            for end in (inner, outer):
                subprocess.run(["ip", "link", "set", end, "up"], check=True, timeout=10)
        for end in itertools.chain(*pairs):
            wait_until_up(end)
        yield pairs
    finally:
        for inner, _ in pairs:
            subprocess.run(["ip", "link", "del", inner], check=False, timeout=10)


@needs_root
def test_frames_between_veth_interfaces(forwarder, cables):
    forwarder.table_add("ports", [7], "to_port", [2])
    ports = {number: InterfacePort(inner) for number, (inner, _) in enumerate(cables, start=1)}
    stop = threading.Event()
    thread = run_in_thread(PortLoop(forwarder, ports), stop)
    frame = b"\0\7" + bytes(10) + b"\x88\xb5" + b"a frame of a local experiment".ljust(46, b".")
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender,
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5)) as receiver,
    ):
        sender.bind((cables[0][1], 0))
        receiver.bind((cables[1][1], 0x88B5))
        receiver.settimeout(10)
        sender.send(frame)
        received = receiver.recv(2048)
    stop.set()
    thread.join(timeout=10)
    for port in ports.values():
        port.close()
    assert received == frame
    assert ports[2].statistics.sent >= 1
    assert ports[2].statistics.sent == 1  # a port that heard its own frame would send it again


def receive_merging(interface: str, turn_on: bool = False) -> bool:
    """Whether it is on; turn_on: turn it on first."""
    get, set_ = 0x2B, 0x2C  # ETHTOOL_GGRO, ETHTOOL_SGRO of linux/ethtool.h
    value = array.array("B", bytes(8))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in (set_, get) if turn_on else (get,):
            struct.pack_into("II", value, 0, command, 1)
            request = struct.pack("16sP16x", interface.encode(), value.buffer_info()[0])
            fcntl.ioctl(control, SIOCETHTOOL, request)
    return bool(struct.unpack("II", value)[1])


@needs_root
def test_receive_merging_is_off_afterwards(cables):
    interface = cables[0][0]
    assert receive_merging(interface, turn_on=True)
    disable_receive_merging(interface)
    assert not receive_merging(interface)


def test_interfaces_that_are_not_there():
    with pytest.raises(OSError):
        InterfacePort("thc-not-there")
    with pytest.raises(OSError):
        disable_receive_merging("thc-not-there")
