"""Workers written in Python that speak to the real thc-ps over loopback, well-behaved or not."""

import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from thc_switch.wire import (
    ChallengePayload,
    ErrorPayload,
    ErrorReason,
    Flag,
    Header,
    HelloPayload,
    MessageType,
    WelcomePayload,
)

TIMEOUT_S = 30.0
#: how long to listen before "no answer" is believed
SILENCE_S = 0.2


@dataclass(frozen=True)
class Reply:
    header: Header
    payload: bytes

    @property
    def error(self) -> ErrorPayload:
        assert self.header.message_type == MessageType.ERROR, self.header
        return ErrorPayload.unpack(self.payload)

    @property
    def reason(self) -> ErrorReason:
        return ErrorReason(self.error.reason)

    @property
    def welcome(self) -> WelcomePayload:
        assert self.header.message_type == MessageType.WELCOME, self.header
        return WelcomePayload.unpack(self.payload)


def fnv1a_64(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


class Worker:
    """One worker of a job of 4-bit codes on the shards of one server."""

    def __init__(
        self,
        address: str,
        worker_id: int,
        workers: int = 3,
        *,
        job: int = 1,
        nonce: int | None = None,
        table: Sequence[int] = tuple(range(16)),
        quorum: int | None = None,
        value_bits: int = 8,
        codes_per_packet: int = 64,
        slots: int = 0,
        settings_hash: int = 0,
        arithmetic: int = 0,
        source_ip: str = "127.0.0.1",
    ) -> None:
        ip, _, port = address.rpartition(":")
        self.server = (ip, int(port))
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((source_ip, 0))
        self.codes_per_packet = codes_per_packet
        self.slots = slots
        self.settings_hash = settings_hash
        self.arithmetic = arithmetic
        self.nonce = 1000 + worker_id if nonce is None else nonce
        self.table = table
        self.quorum = workers if quorum is None else quorum
        self.epochs: dict[int, int] = {}
        self.cookies: dict[int, int] = {}
        self.shape = WelcomePayload()
        self.base = Header(code_bits=4, value_bits=value_bits, worker_id=worker_id, num_workers=workers, job_id=job)

    def close(self) -> None:
        self.socket.close()

    def send(self, header: Header, payload: bytes = b"") -> None:
        self.send_bytes(header.pack() + payload, self.shard_of(header.slot))

    def send_bytes(self, datagram: bytes, shard: int = 0) -> None:
        ip, port = self.server
        self.socket.sendto(datagram, (ip, port + shard))

    def shard_of(self, slot: int) -> int:
        return slot % (self.shape.shards or slot + 1)

    def receive(self, timeout_s: float = TIMEOUT_S) -> Reply:
        """The next datagram, which comes from the shard of its slot."""
        self.socket.settimeout(timeout_s)
        data, (ip, port) = self.socket.recvfrom(65536)
        header = Header.unpack(data)
        assert (ip, port) == (self.server[0], self.server[1] + self.shard_of(header.slot))
        return Reply(header, data[Header.SIZE_BYTES :])

    @property
    def hello_bytes(self) -> int:
        return Header.SIZE_BYTES + HelloPayload.SIZE_BYTES + 2 * len(self.table)

    def send_hello(self, shard: int = 0, *, cookie: int | None = None) -> None:
        values = struct.pack(f">{len(self.table)}H", *self.table)
        payload = HelloPayload(
            table_hash=fnv1a_64(struct.pack(">BH", 4, self.table[-1]) + values),
            nonce=self.nonce,
            granularity=self.table[-1],
            codes_per_packet=self.codes_per_packet,
            slots=self.slots,
            settings_hash=self.settings_hash,
            arithmetic=self.arithmetic,
            quorum=self.quorum,
            cookie=self.cookies.get(shard, 0) if cookie is None else cookie,
        )
        self.send(replace(self.base, message_type=MessageType.HELLO, slot=shard), payload.pack() + values)

    def say_hello(self, shard: int = 0, timeout_s: float = TIMEOUT_S) -> Reply:
        """The answer to a HELLO with the cookie that the server asks for."""
        self.send_hello(shard)
        reply = self.receive(timeout_s)
        if reply.header.message_type == MessageType.CHALLENGE:
            self.cookies[shard] = ChallengePayload.unpack(reply.payload).cookie
            self.send_hello(shard)
            while reply.header.message_type == MessageType.CHALLENGE:  # copies of it
                reply = self.receive(timeout_s)
        return reply

    def join(self, timeout_s: float = TIMEOUT_S) -> WelcomePayload:
        reply = self.say_hello(timeout_s=timeout_s)
        self.shape = reply.welcome
        self.epochs[0] = reply.header.epoch
        for shard in range(1, self.shape.shards):
            self.epochs[shard] = self.say_hello(shard).header.epoch
        return self.shape

    def send_codes(
        self, codes: Sequence[int], *, round: int = 1, slot: int | None = None, flags: int = 0, partition: int = 0
    ) -> None:
        position = self.shape.norm_slots if slot is None else slot
        header = replace(
            self.base,
            message_type=MessageType.CODES,
            flags=flags,
            payload_count=len(codes),
            epoch=self.epochs[position % self.shape.shards],
            round=round,
            slot=position,
            partition=partition,
        )
        nibbles = [*codes, 0] if len(codes) % 2 else codes
        self.send(header, bytes(nibbles[i] << 4 | nibbles[i + 1] for i in range(0, len(nibbles), 2)))

    def send_norms(self, norms: Sequence[float], *, round: int = 1) -> None:
        header = replace(
            self.base, message_type=MessageType.NORM, payload_count=len(norms), epoch=self.epochs[0], round=round
        )
        self.send(header, struct.pack(f">{len(norms)}f", *norms))

    def retransmit(self, codes: Sequence[int], **fields: int) -> None:
        self.send_codes(codes, flags=Flag.RETRANSMIT, **fields)

    def say_goodbye(self) -> None:
        for shard, epoch in self.epochs.items():
            self.send(replace(self.base, message_type=MessageType.GOODBYE, epoch=epoch, slot=shard))


#: The fixture make_worker, with the arguments of Worker.
MakeWorker = Callable[..., Worker]
