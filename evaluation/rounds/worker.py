"""A worker's side of a round: with the decoding server, and with thc-ps."""

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from baselines.codec import EncodeContext
from baselines.config import CodecConfig
from baselines.memory import Compensated, NoMemory
from torch import Tensor
from typing_extensions import override

from byteps_thc import Compressor
from byteps_thc._net.session import Session
from rounds.decoding_server import TIMEOUT_S
from rounds.schemes import COORDINATES, THC_CONFIG, WORKERS, Scheme


@dataclass
class WorkerTimes:
    """Times of one round, by the clock that all processes share. encoded, received: end of the last piece's.

    waited_s: for norms, before `encoded`.
    """

    start: float = 0.0
    encoded: float = 0.0
    received: float = 0.0
    done: float = 0.0
    waited_s: float = 0.0


class Rounds(Protocol):
    """average: float32[COORDINATES], of the last round. keep(): work that may wait until the round is over."""

    average: Tensor

    def run(self, round_number: int) -> WorkerTimes: ...

    def keep(self) -> None: ...


class DenseRounds(Rounds):
    """fp32, from and into the gradients themselves."""

    def __init__(self, gradient: Tensor, connections: Sequence[socket.socket], first: int) -> None:
        self._order = order(len(connections), first)
        self._connections, self.average = connections, gradient.new_zeros(COORDINATES)
        self._source, self._target = (memoryview(tensor.numpy()).cast("B") for tensor in (gradient, self.average))

    @override
    def run(self, round_number: int) -> WorkerTimes:
        start, size = time.perf_counter(), len(self._source) // len(self._connections)
        times = WorkerTimes(start, encoded=start)
        for i in self._order:
            self._connections[i].sendall(self._source[i * size : (i + 1) * size])
        for i in self._order:
            receive(self._connections[i], self._target[i * size : (i + 1) * size])
        times.received = times.done = time.perf_counter()
        return times

    @override
    def keep(self) -> None:
        pass


class CodecRounds(Rounds):
    """A piece's losses are kept when the round is over, as this work may run beside the next one."""

    def __init__(
        self, scheme: Scheme, config: CodecConfig, gradient: Tensor, connections: Sequence[socket.socket], worker: int
    ) -> None:
        servers = len(connections)
        self._codec, self._memory, self._worker = config.codec(), config.memory(WORKERS), worker
        self._specs = scheme.specs(servers)
        self._pieces = gradient.split(COORDINATES // len(self._specs))
        self.average = gradient.new_zeros(COORDINATES)
        self._averages = self.average.split(COORDINATES // len(self._specs))
        self._buffer = np.zeros(scheme.payload_bytes(servers), np.uint8)
        self._connection_of = [connections[i // scheme.pieces] for i in range(len(self._specs))]
        self._order = order(len(self._specs), worker * scheme.pieces)
        self._sent: list[tuple[int, Compensated, Tensor]] = []

    @override
    def run(self, round_number: int) -> WorkerTimes:
        times = WorkerTimes(time.perf_counter())
        for i in self._order:
            payload = self.encode(i, round_number)
            times.encoded = time.perf_counter()
            self._connection_of[i].sendall(memoryview(payload.numpy()))
        for i in self._order:
            receive(self._connection_of[i], memoryview(self._buffer))
            times.received = time.perf_counter()
            self.decode(i, self._buffer)
        times.done = time.perf_counter()
        return times

    def encode(self, i: int, round_number: int) -> Tensor:
        """One piece."""
        state = self._memory.compensate(self._pieces[i], self._specs[i])
        context = EncodeContext(worker=self._worker, round=round_number, step=0)
        payload = self._codec.encode(state.vector, self._specs[i], context)
        self._sent.append((i, state, payload))
        return payload

    def decode(self, i: int, payload: np.ndarray) -> None:
        """The average of one piece."""
        self._averages[i].copy_(self._codec.decode(torch.from_numpy(payload), self._specs[i], 0))

    @override
    def keep(self) -> None:
        for i, state, payload in self._sent:
            if not isinstance(self._memory, NoMemory):
                self._memory.keep(state, self._codec.decode(payload, self._specs[i], 0))
        self._sent.clear()


class ThcRounds(Rounds):
    """THC with thc-ps: one partition for each server."""

    def __init__(self, gradient: Tensor, session: Session, servers: int) -> None:
        self._session = session
        self._compressor = Compressor(THC_CONFIG, workers=session.workers, worker=session.worker, threads=1)
        size = COORDINATES // servers
        self._gradients = [part.numpy() for part in gradient.split(size)]
        self.average = gradient.new_zeros(COORDINATES)
        self._averages = [part.numpy() for part in self.average.split(size)]
        self._partitions = [self._compressor.partition(f"quarter{i}", size) for i in range(servers)]
        self._max_norms = [np.zeros_like(partition.norms) for partition in self._partitions]
        padded = [partition.padded for partition in self._partitions]
        self._aggregates = [session.new_aggregate(count) for count in padded]
        self._contributions = [np.zeros(session.chunks(count), np.uint8) for count in padded]

    @override
    def run(self, round_number: int) -> WorkerTimes:
        times, session, compressor = WorkerTimes(time.perf_counter()), self._session, self._compressor
        norm_stages, code_stages = [], []
        for i, partition in enumerate(self._partitions):
            norms = compressor.measure(partition, self._gradients[i], round=round_number)
            norm_stages.append(session.push_norms(i, norms, self._max_norms[i]))
        for i, partition in enumerate(self._partitions):
            begin = time.perf_counter()
            session.wait(norm_stages[i], TIMEOUT_S)
            times.waited_s += time.perf_counter() - begin
            codes = compressor.encode(partition, self._max_norms[i])
            times.encoded = time.perf_counter()
            code_stages.append(session.push_codes(i, codes, self._aggregates[i], self._contributions[i]))
        for i, partition in enumerate(self._partitions):
            session.wait(code_stages[i], TIMEOUT_S)
            times.received = time.perf_counter()
            compressor.decode(
                partition, self._aggregates[i], self._contributions[i], self._averages[i],
                codes_per_chunk=session.codes_per_packet,
            )  # fmt: skip
        times.done = time.perf_counter()
        return times

    @override
    def keep(self) -> None:
        pass


def order(count: int, first: int) -> list[int]:
    """All servers, the own one first: not everybody begins with the same server."""
    return [(first + i) % count for i in range(count)]


def receive(connection: socket.socket, into: memoryview) -> None:
    """Fill a buffer."""
    while into:
        count = connection.recv_into(into)
        if not count:
            raise ConnectionError("the server has left in the middle of a round")
        into = into[count:]
