"""Workers that push partitions through an aggregator over a network that loses, copies, delays and reorders packets.

One seed makes all randomness. Lab.send checks each packet; results are compared with sums of the codes.
"""

import random
from dataclasses import dataclass, field

import numpy as np
from scapy.packet import Packet

from switch_lab.jobs import CODES_PER_PACKET, Bytes, Job, Worker
from switch_lab.lab import Lab, Reply


@dataclass(frozen=True)
class Faults:
    """Probabilities, each way. A delayed packet comes back rounds later."""

    loss: float = 0.05
    duplication: float = 0.05
    delay: float = 0.02
    spurious_retransmission: float = 0.02
    shuffled: bool = True


@dataclass
class Stream:
    """One worker's way through the chunks of a partition: chunk k uses slot k mod S in round k div S + first_round."""

    job: Job
    worker: Worker
    codes: list[Bytes]
    slots: int
    first_round: int
    results: dict[int, bytes] = field(default_factory=dict)
    stragglers: set[int] = field(default_factory=set)

    def round_of(self, chunk: int) -> int:
        return (self.first_round + chunk // self.slots) % (1 << 32)

    def packet(self, chunk: int, *, retransmit: bool) -> Packet:
        return self.job.codes(
            self.worker,
            self.codes[chunk],
            slot=self.job.first_code_slot + chunk % self.slots,
            round=self.round_of(chunk),
            partition=7,
            chunk=chunk,
            retransmit=retransmit,
        )

    def is_done(self, chunk: int) -> bool:
        return chunk in self.results or chunk in self.stragglers

    @property
    def in_flight(self) -> list[int]:
        """Chunks without a result whose slot is theirs: the one before them in it is done."""
        return [
            chunk
            for chunk in range(len(self.codes))
            if not self.is_done(chunk) and (chunk < self.slots or self.is_done(chunk - self.slots))
        ]

    @property
    def finished(self) -> bool:
        return len(self.results) + len(self.stragglers) == len(self.codes)

    def receive(self, reply: Reply) -> list[int]:
        """Note a result; return the chunks it lets go."""
        chunk = reply.thc.chunk
        if reply.thc.epoch != self.job.epoch or reply.thc.round != self.round_of(chunk) or self.is_done(chunk):
            return []
        if reply.kind == "aggregate":
            self.results[chunk] = reply.payload
        elif reply.kind == "straggler":
            self.stragglers.add(chunk)
        else:
            return []
        return [chunk + self.slots] if chunk + self.slots < len(self.codes) else []


class Simulation:
    """Jobs of a lab, each pushing one partition. `restart_after`: packets after which the first job begins anew."""

    def __init__(
        self,
        lab: Lab,
        *,
        seed: int,
        chunks: int = 12,
        codes_per_packet: int = CODES_PER_PACKET,
        window: int | None = None,
        first_round: int = 1,
        faults: Faults | None = None,
        restart_after: int | None = None,
        most_packets: int = 20_000,
    ) -> None:
        self.lab = lab
        self.faults = faults or Faults()
        self._random = random.Random(seed)
        self._restart_after, self._most_packets = restart_after, most_packets
        self._shape = (chunks, codes_per_packet, window, first_round)
        self._codes_random = np.random.default_rng(seed)
        self._air: list[tuple[Stream, Packet | Reply]] = []
        self._delayed: list[tuple[Stream, Packet | Reply]] = []
        self.streams = [stream for job in lab.jobs for stream in self._streams_of(job)]

    def run(self) -> None:
        """Until every worker has every result; checks them."""
        for stream in self.streams:
            self._send(stream, stream.in_flight)
        delivered = 0
        while not all(stream.finished for stream in self.streams):
            assert delivered < self._most_packets, "no end in sight"
            if delivered == self._restart_after:
                self._restart(self.lab.jobs[0])
            self._take_turn()
            delivered += 1
        for _, message in self._air + self._delayed:  # packets that arrive after the end
            if isinstance(message, Packet):
                self.lab.send(message)
        self._check_results()

    def _take_turn(self) -> None:
        if self._delayed and self._random.random() < self.faults.delay:
            self._air.append(self._delayed.pop(self._random.randrange(len(self._delayed))))
        if not self._air:  # every timer runs out
            for stream in self.streams:
                self._send(stream, stream.in_flight, retransmit=True)
            return
        stream, message = self._air.pop(self._random.randrange(len(self._air)) if self.faults.shuffled else 0)
        if isinstance(message, Packet):
            self._arrive(message)
        else:
            self._send(stream, stream.receive(message))
        if stream.in_flight and self._random.random() < self.faults.spurious_retransmission:
            self._send(stream, [self._random.choice(stream.in_flight)], retransmit=True)

    def _arrive(self, packet: Packet) -> None:
        for reply in self.lab.send(packet).replies:
            for stream in self.streams:
                if stream.worker.endpoint == reply.to:
                    self._transmit(stream, reply)

    def _send(self, stream: Stream, chunks: list[int], *, retransmit: bool = False) -> None:
        for chunk in chunks:
            self._transmit(stream, stream.packet(chunk, retransmit=retransmit))

    def _transmit(self, stream: Stream, message: Packet | Reply) -> None:
        if self._random.random() < self.faults.duplication:
            self._air.append((stream, message))
        if self._random.random() < self.faults.delay:
            self._delayed.append((stream, message))
        if self._random.random() >= self.faults.loss:
            self._air.append((stream, message))

    def _streams_of(self, job: Job) -> list[Stream]:
        chunks, count, window, first_round = self._shape
        slots = window or job.slots - job.norm_slots
        codes = self._codes_random.integers(0, 16, (len(job.workers), chunks, count), dtype=np.uint8)
        return [Stream(job, worker, list(codes[worker.worker_id]), slots, first_round) for worker in job.workers]

    def _restart(self, job: Job) -> None:
        begun_anew = self._streams_of(self.lab.restart(job))
        self.streams = begun_anew + [stream for stream in self.streams if stream.job is not job]
        for stream in begun_anew:
            self._send(stream, stream.in_flight)

    def _check_results(self) -> None:
        for job in self.lab.jobs:
            streams = [stream for stream in self.streams if stream.job is job]
            if job.quorum == len(job.workers):
                assert not any(stream.stragglers for stream in streams)
                for chunk in range(self._shape[0]):
                    expected = job.sum([stream.codes[chunk] for stream in streams])
                    assert [stream.results[chunk] for stream in streams] == [expected] * len(streams)
