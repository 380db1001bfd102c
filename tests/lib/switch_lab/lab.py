"""An aggregator with joined jobs, every answer of which is compared with the reference."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet
from thc_scapy import PORT, TYPES, Thc, ThcChallenge, ThcWelcome

from switch_lab.jobs import SERVICE_IP, SERVICE_MAC, Bytes, Endpoint, Job, Worker
from switch_lab.reference import Answer, Reference
from switch_lab.targets.target import PortFrame, Target

#: A worker that was silent for longer may be replaced by another process with its id (docs/contributors/protocol.md).
LIVENESS_S = 1.0


@dataclass(frozen=True)
class Reply:
    """A message that the aggregator sent, and to whom."""

    to: Endpoint
    thc: Thc

    @property
    def kind(self) -> str:
        return next(name for name, value in TYPES.items() if value == self.thc.message_type)

    @property
    def payload(self) -> bytes:
        return bytes(self.thc.payload)


@dataclass(frozen=True)
class Outcome:
    """The fate of a packet: the reference's reason, and the replies, which equalled the reference's."""

    reason: str
    replies: tuple[Reply, ...]

    @property
    def kinds(self) -> list[str]:
        return [reply.kind for reply in self.replies]

    @property
    def payloads(self) -> tuple[bytes, ...]:
        return tuple(reply.payload for reply in self.replies)

    @property
    def to(self) -> list[Endpoint]:
        return [reply.to for reply in self.replies]


def datagram_of(frame: bytes) -> bytes:
    """Return the datagram that UDP delivers, without a trailer behind the packet."""
    udp = Ether(frame)[UDP]
    return bytes(udp)[8 : udp.len]


class Lab:
    """A target with jobs whose workers joined. `send` compares, so tests only need to assert special properties."""

    def __init__(self, target: Target, jobs: Sequence[Job]) -> None:
        self.target = target
        self._nonces = itertools.count(1)
        target.install(jobs)
        self.jobs = [self.join(job, next(self._nonces)) for job in jobs]
        self.reference = Reference(self.jobs, target.limits)
        self._stations = {worker.endpoint: worker for job in jobs for worker in job.workers}
        self.reasons: Counter[str] = Counter()

    @property
    def job(self) -> Job:
        (job,) = self.jobs
        return job

    def join(self, job: Job, nonce: int) -> Job:
        """Let all workers say HELLO; return the job with the epoch that WELCOME told. nonce: for all processes."""
        epochs = set()
        for worker in job.workers:
            welcome = self._hello(job, worker, nonce)
            assert welcome.message_type == TYPES["welcome"]
            assert (welcome[ThcWelcome].slots, welcome[ThcWelcome].norm_slots) == (job.slots, job.norm_slots)
            epochs.add(welcome.epoch)
        (epoch,) = epochs
        return job.with_epoch(epoch)

    def restart(self, job: Job) -> Job:
        """Restarted workers join again, and the job has a new epoch, once they believe the earlier process gone."""
        self.target.pass_time(LIVENESS_S * 1.2)
        nonce = next(self._nonces)
        for _ in range(5):  # one is enough, unless a busy machine keeps thc-ps from answering
            if self._hello(job, job.workers[0], nonce).message_type != TYPES["error"]:
                break
            self.target.pass_time(LIVENESS_S * 1.2)
        joined = self.join(job, nonce)
        assert joined.epoch != job.epoch
        self.jobs[self.jobs.index(job)] = joined
        self.reference.start(joined)
        return joined

    def push(self, job: Job, codes: Sequence[Bytes], **fields: int) -> tuple[bytes, ...]:
        """Let every worker send its codes for one slot and round; return the payloads of the replies to the last."""
        outcomes = [self.send(job.codes(worker, codes[worker.worker_id], **fields)) for worker in job.workers]
        assert [outcome.reason for outcome in outcomes] == ["absorbed"] * (len(codes) - 1) + ["completed"]
        assert [reply.kind for reply in outcomes[-1].replies] == ["aggregate"] * len(codes)
        return outcomes[-1].payloads

    def send(self, packet: Packet, *, worker: Worker | None = None) -> Outcome:
        """Send a NORM or CODES frame; the replies must be the reference's. worker: None: the address's."""
        return self.send_raw(worker or self._stations[packet[IP].src, packet[UDP].sport], bytes(packet))

    def send_raw(self, worker: Worker, frame: bytes) -> Outcome:
        """Send a frame by the port of this worker, and compare."""
        packet = Ether(frame)
        answer = self.reference.handle(datagram_of(frame), (packet[IP].src, packet[UDP].sport))
        frames = self.target.exchange(worker.switch_port, frame)
        while len(frames) < len(answer.replies) and (late := self.target.late()):
            frames += late
        received = sorted(self.decode(reply) for reply in frames)
        self._compare(answer, received)
        self.reasons[answer.reason] += 1
        return Outcome(answer.reason, tuple(Reply(to, Thc(datagram)) for to, datagram in received))

    def decode(self, reply: PortFrame) -> tuple[Endpoint, bytes]:
        """Check the reply's outside and return addressee and datagram."""
        port, raw = reply
        packet = Ether(raw)
        to = (packet[IP].dst, packet[UDP].dport)
        station = self._stations[to]
        assert (packet.src, packet.dst, port) == (SERVICE_MAC, station.mac, station.switch_port)
        assert (packet[IP].src, packet[UDP].sport) == (SERVICE_IP, PORT)
        assert (packet[IP].version, packet[IP].ihl, packet[IP].frag, packet[IP].proto) == (4, 5, 0, 17)
        assert packet[IP].ttl > 0
        assert packet[IP].len == packet[UDP].len + 20 <= len(raw) - 14
        header = IP(bytes(packet[IP])[:20])
        del header.chksum
        assert IP(bytes(header)).chksum == packet[IP].chksum, "wrong IPv4 header checksum"
        assert packet[UDP].chksum == 0
        return to, datagram_of(raw)

    def _compare(self, answer: Answer, received: list[tuple[Endpoint, bytes]]) -> None:
        expected = sorted(answer.replies)
        if received != expected:
            raise AssertionError(
                f"the packet is to be counted as {answer.reason} and answered with\n  {_shown(expected)}\n"
                f"but {self.target.name} answered\n  {_shown(received)}"
            )

    def _hello(self, job: Job, worker: Worker, nonce: int) -> Thc:
        cookie = 0
        while True:
            ((_, reply),) = self.target.exchange(worker.switch_port, bytes(job.hello(worker, nonce, cookie)))
            answer = Ether(reply)[Thc]
            if answer.message_type != TYPES["challenge"]:
                return answer
            assert cookie == 0, "a cookie was not accepted"
            cookie = answer[ThcChallenge].cookie


def _shown(replies: list[tuple[Endpoint, bytes]]) -> str:
    return "\n  ".join(f"{to}: {Thc(datagram)!r}" for to, datagram in replies) or "nothing"
