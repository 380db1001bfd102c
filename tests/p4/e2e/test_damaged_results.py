"""A packet of a switch that was damaged on its way to one worker: it has no checksum, so averages tell."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from e2e.udp_switch import free_udp_ports, job_of, sessions_at, udp_switch
from error_of import error_of

from byteps_thc import GradientAverager, ServerCodes
from byteps_thc._scheme.adding.compressor import Compressor
from thc_p4_model.ports import UdpPort
from thc_switch.wire import MessageType

CONFIG = ServerCodes()
JOB, WORKERS, SIZE = 9, 2, 3000
#: Places in a frame: fields of the header, and the payload, behind Ethernet, IPv4 and UDP.
TYPE, WORKER, PARTITION, PAYLOAD = 42 + 1, 42 + 5, 42 + 25, 42 + 32


def damage(front: UdpPort, message_type: MessageType, at: int) -> None:
    """Flip a bit in the packets of that type to worker 1, of its second step."""
    send = front.send

    def send_or_damage(frame: bytes) -> None:
        if (frame[TYPE], frame[WORKER], frame[PARTITION]) == (message_type, 1, 1):
            frame = bytes([*frame[: PAYLOAD + at], frame[PAYLOAD + at] ^ 16, *frame[PAYLOAD + at + 1 :]])
        send(frame)

    front.send = send_or_damage  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("message_type", "at"),
    # A norm behind the four words that are compared; a sum.
    [(MessageType.MAX_NORM, 18), (MessageType.AGGREGATE, 100)],
)
def test_all_workers_raise_in_the_next_step(message_type: MessageType, at: int) -> None:
    ports = free_udp_ports(WORKERS)
    with udp_switch("v1model", job_of(JOB, ports, CONFIG)) as front, ExitStack() as stack:
        damage(front, message_type, at)
        averagers = [
            GradientAverager(session, Compressor(CONFIG, worker=worker, workers=WORKERS))
            for worker, session in enumerate(sessions_at(ports, JOB, CONFIG, stack))
        ]

        def average(worker: int) -> np.ndarray:  # type: ignore[type-arg]
            gradient = np.random.default_rng(worker).standard_normal(SIZE, np.float32)
            averagers[worker].average({"layer": gradient})
            return gradient

        with ThreadPoolExecutor(WORKERS) as pool:
            first, second = pool.map(average, range(WORKERS))
            np.testing.assert_array_equal(first, second)
            first, second = pool.map(average, range(WORKERS))
            assert not np.array_equal(first, second)
            errors = list(pool.map(lambda worker: error_of(lambda: average(worker)), range(WORKERS)))
    for error in errors:
        assert error.startswith("TransportError: the last average of 'layer' (3000 elements)")
        assert "differs between workers" in error
