"""HELLO as a ping: joins a server as the only worker of a job that nobody else has, and leaves it again."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from byteps_thc._cli.doctor.visit import random_job
from byteps_thc._scheme.config import ThcConfig
from byteps_thc._scheme.errors import TransportError
from byteps_thc._scheme.wire.hello import pack
from byteps_thc._scheme.wire.layout import (
    SWITCH_CODES_PER_PACKET,
    VERSION,
    ChallengePayload,
    ConfigField,
    ErrorPayload,
    ErrorReason,
    Header,
    HelloPayload,
    MessageType,
    WelcomePayload,
)

_REPEAT_S = 0.2
#: More than any answer has.
_MAX_ANSWER_BYTES = 2048
#: Payload of what answers a HELLO, by message type.
_ANSWER_BYTES: dict[int, int] = {
    MessageType.WELCOME: WelcomePayload.SIZE_BYTES,
    MessageType.CHALLENGE: ChallengePayload.SIZE_BYTES,
    MessageType.ERROR: ErrorPayload.SIZE_BYTES,
}


class NoAnswerError(TransportError):
    """Nothing that speaks the protocol answered in time."""


class NothingListensError(NoAnswerError):
    """The host says that no program has the port."""


@dataclass(frozen=True)
class Answer:
    """What a server says to HELLO. refusal: why it does not let us in; field: the setting it is about."""

    round_trip_s: float
    refusal: ErrorReason | None = None
    field: ConfigField = ConfigField.NONE


def say_hello(server: tuple[str, int], *, deadline_s: float) -> Answer:
    """Say HELLO until it is answered, then GOODBYE. Raises NoAnswerError, or OSError when there is no way there."""
    header, hello, table = _hello(random_job())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.connect(server)
        end = time.monotonic() + deadline_s
        # From the first of equal HELLOs: later answers of a long way are no answers to the last one.
        repeat_at = begun_at = time.monotonic()
        while (now := time.monotonic()) < end:
            try:
                if now >= repeat_at:
                    connection.send(header.pack() + pack(hello, table))
                    repeat_at = now + _REPEAT_S
                answer = _receive(connection, header.job_id, min(repeat_at, end) - now)
            except ConnectionRefusedError:
                raise NothingListensError("nothing listens on that port") from None
            if answer is None:
                continue
            reply, body = answer
            if reply.message_type != MessageType.CHALLENGE:
                return _read(connection, header, reply, body, time.monotonic() - begun_at)
            if (cookie := ChallengePayload.unpack(body).cookie) != hello.cookie:
                hello = replace(hello, cookie=cookie)
                repeat_at = begun_at = time.monotonic()
    elsewhere = _answers_from_elsewhere(server, header, hello, table)
    raise NoAnswerError(f"no answer within {deadline_s:g} s" + (f"; {elsewhere}" if elsewhere else ""))


def _answers_from_elsewhere(server: tuple[str, int], header: Header, hello: HelloPayload, table: Sequence[int]) -> str:
    """What is wrong if answers come from another address, which a socket that is connected does not receive."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.sendto(header.pack() + pack(hello, table), server)
        if _receive(asking, header.job_id, _REPEAT_S) is None:
            return ""
    return (
        "an answer comes from another address, which workers ignore: an old thc-ps on a host with several addresses, "
        f"or NAT; start it there with --listen {server[0]}"
    )


def _hello(job: int) -> tuple[Header, HelloPayload, Sequence[int]]:
    config = ThcConfig()
    resolved = config.resolve(workers=1)
    table = resolved.table
    header = Header(
        message_type=MessageType.HELLO,
        code_bits=table.bits,
        value_bits=resolved.value_bits,
        num_workers=1,
        job_id=job,
    )
    # Without `arithmetic`, which needs the compiled kernels: this job has no other worker.
    hello = HelloPayload(
        table_hash=table.hash,
        nonce=secrets.randbits(64),
        granularity=table.granularity,
        codes_per_packet=SWITCH_CODES_PER_PACKET,
        quorum=1,
        settings_hash=resolved.shared_hash,
    )
    return header, hello, table.values


def _receive(connection: socket.socket, job: int, timeout_s: float) -> tuple[Header, bytes] | None:
    """The next message about `job`; None when there is none in time."""
    end = time.monotonic() + timeout_s
    while (left_s := end - time.monotonic()) > 0:
        connection.settimeout(left_s)
        try:
            datagram = connection.recv(_MAX_ANSWER_BYTES)
        except TimeoutError:
            return None
        if len(datagram) < Header.SIZE_BYTES:
            continue
        header, body = Header.unpack(datagram), datagram[Header.SIZE_BYTES :]
        is_answer = (header.version, header.job_id) == (VERSION, job) and header.message_type in _ANSWER_BYTES
        if is_answer and len(body) >= _ANSWER_BYTES[header.message_type]:
            return header, body
    return None


def _read(connection: socket.socket, hello: Header, reply: Header, body: bytes, round_trip_s: float) -> Answer:
    if reply.message_type == MessageType.ERROR:
        error = ErrorPayload.unpack(body)
        return Answer(round_trip_s, ErrorReason(error.reason), ConfigField(error.field))
    goodbye = Header(
        message_type=MessageType.GOODBYE,
        code_bits=hello.code_bits,
        value_bits=hello.value_bits,
        num_workers=1,
        job_id=hello.job_id,
        epoch=reply.epoch,
    )
    connection.send(goodbye.pack())
    return Answer(round_trip_s)
