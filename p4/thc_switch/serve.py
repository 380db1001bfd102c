"""The agent on a network interface: the host's end of the switch's CPU port."""

import contextlib
import logging
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator

from byteps_thc._base.errors import ConfigurationError, TransportError
from thc_switch.agent import SwitchAgent

_ETH_P_IP = 0x0800
_PACKET_OUTGOING = 4
_MAX_FRAME_BYTES = 65535
#: Longest delay of a stop.
_POLL_S = 0.2
#: Frames between looks at the stop event.
_BURST = 64

_log = logging.getLogger(__name__)


def serve(agent: SwitchAgent, interface: str, stop: threading.Event) -> None:
    """Answer frames on `interface` until `stop` is set. Needs CAP_NET_RAW.

    A frame whose commands fail at the switch is logged and not answered: the worker asks again. Raises TransportError
    if the interface goes away.
    """
    with _raw_socket(interface) as raw:
        while not stop.is_set():
            if not select.select([raw], [], [], _POLL_S)[0]:
                continue
            for frame in _received(raw, interface):
                try:
                    answers = agent.handle(frame, time.monotonic())
                except TransportError:
                    _log.exception("a frame from %s was not answered", interface)
                    continue
                _send(raw, answers)


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raw_socket(interface: str) -> socket.socket:
    try:
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_IP))
    except PermissionError as error:
        raise ConfigurationError("raw sockets need CAP_NET_RAW: run as root") from error
    try:
        raw.bind((interface, _ETH_P_IP))
        raw.setblocking(False)
    except OSError as error:
        raw.close()
        raise ConfigurationError(f"interface {interface!r} cannot be used: {error.strerror}") from error
    return raw


def _received(raw: socket.socket, interface: str) -> Iterator[bytes]:
    for _ in range(_BURST):
        try:
            frame, address = raw.recvfrom(_MAX_FRAME_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise TransportError(f"interface {interface}: {error.strerror}") from error
        if address[2] != _PACKET_OUTGOING:
            yield frame


def _send(raw: socket.socket, frames: list[bytes]) -> None:
    for frame in frames:
        with contextlib.suppress(BlockingIOError):  # full: lost like any datagram, and asked for again
            raw.send(frame)
