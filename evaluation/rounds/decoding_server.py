"""A parameter server that decodes all payloads, averages, encodes the average and sends it, all unneeded with THC.

One thread. It decodes and adds a worker's payload as soon as it is complete, while the kernel receives other workers'
bytes; the average goes to all workers at once, out of the kernel's buffers. fp32 is added where it was received.
"""

import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from baselines.codec import EncodeContext, VectorSpec
from baselines.config import CodecConfig
from baselines.memory import ErrorFeedback, Memory, NoMemory
from torch import Tensor

from rounds.schemes import Scheme

TIMEOUT_S = 30.0
#: A whole partition fits into the buffers of a connection: nobody waits for a thread that has other work.
_BUFFER_BYTES = 16 << 20


@dataclass
class ServerTimes:
    """Times of one round.

    last: arrival of the last byte; reply: start of the last answer; both by the clock that all processes share. The
    others: seconds of the processor. receive_s, send_s: copying from and to the kernel, and its TCP. keep_s: keeping
    the encoder's losses, once answers are sent. cpu_s: total.
    """

    last: float = 0.0
    reply: float = 0.0
    receive_s: float = 0.0
    decode_s: float = 0.0
    sum_s: float = 0.0
    encode_s: float = 0.0
    send_s: float = 0.0
    keep_s: float = 0.0
    cpu_s: float = 0.0


class Adder:
    """fp32: sums pieces where they were received."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._total: npt.NDArray[np.float32]

    def take(self, payload: npt.NDArray[np.uint8], times: ServerTimes, *, first: bool) -> None:
        begin = time.thread_time()
        values = payload.view(np.float32)
        if first:
            self._total = values
        else:
            np.add(self._total, values, out=self._total)
        times.sum_s += time.thread_time() - begin

    def answer(self, _round_number: int, times: ServerTimes) -> memoryview:
        begin = time.thread_time()
        np.multiply(self._total, np.float32(1 / self._workers), out=self._total)
        times.sum_s += time.thread_time() - begin
        return memoryview(self._total).cast("B")

    def keep(self, times: ServerTimes) -> None:
        pass


class Decoder:
    """A codec's payloads of one piece; if workers keep losses, the average's encoder keeps its own.

    The server then follows DoubleSqueeze (Tang et al., ICML 2019), as averagers.Baseline simulates it.
    """

    def __init__(self, config: CodecConfig, spec: VectorSpec, workers: int) -> None:
        self._codec, self._spec, self._workers = config.codec(), spec, workers
        forgets = isinstance(config.memory(workers), NoMemory)
        self._memory: Memory = NoMemory() if forgets else ErrorFeedback()
        self._total: Tensor

    def take(self, payload: npt.NDArray[np.uint8], times: ServerTimes, *, first: bool) -> None:
        begin = time.thread_time()
        decoded = self._codec.decode(torch.from_numpy(payload), self._spec, 0)
        added = time.thread_time()
        times.decode_s += added - begin
        if first:
            self._total = decoded
        else:
            self._total += decoded
            times.sum_s += time.thread_time() - added

    def answer(self, round_number: int, times: ServerTimes) -> memoryview:
        begin = time.thread_time()
        self._total /= self._workers
        divided = time.thread_time()
        self._state = self._memory.compensate(self._total, self._spec)
        context = EncodeContext(worker=self._workers, round=round_number, step=0)
        self._payload = self._codec.encode(self._state.vector, self._spec, context)
        times.sum_s += divided - begin
        times.encode_s += time.thread_time() - divided
        return memoryview(self._payload.numpy())

    def keep(self, times: ServerTimes) -> None:
        begin = time.thread_time()
        if not isinstance(self._memory, NoMemory):
            self._memory.keep(self._state, self._codec.decode(self._payload, self._spec, 0))
        times.keep_s += time.thread_time() - begin


def adders(scheme: Scheme, server: int, servers: int, workers: int) -> list[Adder | Decoder]:
    """Adders for the pieces of one of so many servers, kept from round to round."""
    own = scheme.specs(servers)[server * scheme.pieces : (server + 1) * scheme.pieces]
    config = scheme.config
    return [Adder(workers) if config is None else Decoder(config, spec, workers) for spec in own]


class DecodingServer:
    """Serves rounds of one scheme. connections: one of each worker."""

    def __init__(self, scheme: Scheme, server: int, servers: int, connections: Sequence[socket.socket]) -> None:
        self._adders = adders(scheme, server, servers, len(connections))
        self._piece_bytes = scheme.payload_bytes(servers)
        self._connections = connections
        shape = (len(connections), scheme.pieces, self._piece_bytes)
        self._received = np.zeros(shape, np.uint8)

    def serve(self, round_number: int) -> ServerTimes:
        """One round. TimeoutError when payloads do not come."""
        times, workers = ServerTimes(), len(self._connections)
        cpu_s = time.process_time()
        views = [memoryview(received).cast("B") for received in self._received]
        counts, taken, answered = [0] * workers, [0] * workers, 0
        while answered < len(self._adders):
            for worker in self._ready(counts, len(views[0])):
                begin = time.thread_time()
                count = self._connections[worker].recv_into(views[worker][counts[worker] :])
                if not count:
                    raise ConnectionError(f"worker {worker} has left in the middle of a round")
                counts[worker] += count
                times.last = time.perf_counter()
                times.receive_s += time.thread_time() - begin
                while taken[worker] < counts[worker] // self._piece_bytes:
                    piece = taken[worker]
                    first = max(taken) <= piece
                    self._adders[piece].take(self._received[worker, piece], times, first=first)
                    taken[worker] += 1
            while answered < min(taken):
                payload = self._adders[answered].answer(round_number, times)
                times.reply, begin = time.perf_counter(), time.thread_time()
                for connection in self._connections:
                    connection.sendall(payload)
                times.send_s += time.thread_time() - begin
                answered += 1
        for adder in self._adders:
            adder.keep(times)
        times.cpu_s = time.process_time() - cpu_s
        return times

    def _ready(self, counts: Sequence[int], whole: int) -> list[int]:
        """Workers with bytes to read."""
        missing = {connection: i for i, connection in enumerate(self._connections) if counts[i] < whole}
        ready, _, _ = select.select(list(missing), [], [], TIMEOUT_S)
        if not ready:
            raise TimeoutError(f"no payload within {TIMEOUT_S:g} s from workers {sorted(missing.values())}")
        return [missing[connection] for connection in ready]


def tune(connection: socket.socket) -> None:
    """Give a connection its buffers; root may have more than the system's limit."""
    connection.settimeout(TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (32, 33):  # SO_SNDBUFFORCE, SO_RCVBUFFORCE: without names in Python 3.11
        connection.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
