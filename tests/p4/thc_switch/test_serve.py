"""The agent on a network interface."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from switch_control.site import Site
from switch_lab.targets.wired import Cables, Wires, why_no_cables

from byteps_thc._base.errors import ConfigurationError, TransportError
from thc_p4_model.switch import Switch
from thc_switch import Deployment, frames, plan
from thc_switch.serve import serve
from thc_switch.targets.model import ModelControl
from thc_switch.wire import Header, MessageType

PORT = 1
STOP_S = 30.0
ANSWER_S, REPEAT_S = 30.0, 0.2
MISSING = why_no_cables()


@pytest.fixture
def site(deployment: Deployment, v1model_switch: Callable[..., Switch]) -> Site:
    switch = v1model_switch()
    ModelControl(switch).install(plan(deployment))
    return Site(deployment, switch)


@pytest.fixture
def cable() -> Iterator[Cables]:
    if MISSING:
        pytest.skip(MISSING)
    cables = Cables(f"a{os.getpid()}p", [PORT])
    yield cables
    cables.remove()


@pytest.fixture
def wires(cable: Cables) -> Iterator[Wires]:
    """The switch's end of the CPU port."""
    wires = Wires({PORT: cable.host_end(PORT)})
    yield wires
    wires.close()


def ask(wires: Wires, frame: bytes) -> bytes:
    """Send a frame, as workers do, until an answer arrives; a socket also receives its own frames."""
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        wires.send(PORT, frame)
        again = time.monotonic() + REPEAT_S
        while (left_s := again - time.monotonic()) > 0:
            if answers := wires.receive(left_s):
                return answers[0][1]
    raise AssertionError("no answer")


@contextmanager
def serving(site: Site, interface: str) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=serve, args=(site.agent, interface, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(STOP_S)
        assert not thread.is_alive()


def hello(site: Site) -> bytes:
    return frames.build(site.datagram(site.hello_bytes()))


def test_answers_come_back_over_the_interface(site: Site, cable: Cables, wires: Wires) -> None:
    with serving(site, cable.switch_end(PORT)):
        wires.send(PORT, b"\xff" * 60)
        answer = frames.parse(ask(wires, hello(site)))
    assert answer is not None
    assert Header.unpack(answer.payload).message_type == MessageType.WELCOME
    assert site.open_epoch() == 1000


def test_a_switch_out_of_reach_is_no_end(
    site: Site, cable: Cables, wires: Wires, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [TransportError("the switch is rebooting")]
    worker_packets = site.control.worker_packets

    def unreliable(*arguments: object) -> int:
        if failures:
            raise failures.pop()
        return worker_packets(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(site.control, "worker_packets", unreliable)
    with serving(site, cable.switch_end(PORT)):
        ask(wires, hello(site))
    assert not failures


def test_an_interface_that_is_not_there(site: Site) -> None:
    with pytest.raises(ConfigurationError, match=r"'none0' cannot be used|need CAP_NET_RAW"):
        serve(site.agent, "none0", threading.Event())


def test_without_the_right_to_raw_sockets(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise PermissionError

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(ConfigurationError, match="raw sockets need CAP_NET_RAW: run as root"):
        serve(site.agent, "lo", threading.Event())
