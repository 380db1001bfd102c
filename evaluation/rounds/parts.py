"""The work of a round, each part alone on one core; and rounds computed from it."""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from byteps_thc import Compressor
from byteps_thc._native import _core
from rounds.decoding_server import ServerTimes, adders
from rounds.schemes import COORDINATES, SCHEMES, STREAMED, THC, THC_CONFIG, WORKERS, gradient_of
from rounds.worker import CodecRounds

#: By scheme: ms of "compress", "server", "decompress" and of the parts of "server".
Parts = dict[str, dict[str, float]]


class ThcParts:
    """measure and encode, look up and add, decode; a partition for each server."""

    def __init__(self, servers: int) -> None:
        size = COORDINATES // servers
        self._gradients = [part.numpy() for part in gradient_of(0).split(size)]
        self._compressor = Compressor(THC_CONFIG, workers=WORKERS, worker=0, threads=1)
        self._partitions = [self._compressor.partition(f"quarter{i}", size) for i in range(servers)]
        dtype = np.uint8 if self._compressor.resolved.value_bits == 8 else np.uint16
        self._sums = [np.zeros(size, dtype) for _ in range(servers)]
        self._out = np.zeros(size, np.float32)

    def run(self, round_number: int) -> dict[str, float]:
        clock = [time.thread_time()]
        compressor = self._compressor
        for partition, gradient in zip(self._partitions, self._gradients, strict=True):
            norms = compressor.measure(partition, gradient, round=round_number)
            compressor.encode(partition, norms)
        clock.append(time.thread_time())
        partition, table = self._partitions[0], compressor.table
        for worker in range(WORKERS):
            _core.lookup_sum(partition.codes, table.array, self._sums[0], bits=table.bits, add=worker > 0)
        clock.append(time.thread_time())
        contributions = np.full(1, WORKERS, np.uint8)
        for partition, sums in zip(self._partitions, self._sums, strict=True):
            compressor.decode(partition, sums, contributions, self._out)
        clock.append(time.thread_time())
        compress, server, decompress = np.diff(clock)
        return {"compress": compress, "server": server, "decompress": decompress, "sum_s": server}


class SchemeParts:
    """Parts of a scheme of the decoding server, as ThcParts."""

    def __init__(self, name: str, servers: int) -> None:
        scheme = SCHEMES[name]
        self._adders = adders(scheme, 0, servers, WORKERS)
        self._payloads = np.zeros((WORKERS, len(self._adders), scheme.payload_bytes(servers)), np.uint8)
        self._gradients = [gradient_of(worker) for worker in range(WORKERS)]
        self._pieces = len(scheme.specs(servers))
        without_network: list[Any] = [None] * servers
        self._workers = [
            CodecRounds(scheme, scheme.config, gradient, without_network, worker)
            for worker, gradient in enumerate(self._gradients)
            if scheme.config is not None
        ]

    def run(self, round_number: int) -> dict[str, float]:
        compress = decompress = 0.0
        own_pieces = len(self._adders)
        for worker, rounds in enumerate(self._workers):
            begin = time.thread_time()
            payloads = [rounds.encode(i, round_number) for i in range(self._pieces)]
            compress += (time.thread_time() - begin) / WORKERS
            self._payloads[worker] = torch.stack(payloads[:own_pieces]).numpy()
        if not self._workers:
            for received, gradient in zip(self._payloads, self._gradients, strict=True):
                received.reshape(-1)[:] = gradient.numpy().view(np.uint8)[: received.size]
        times = ServerTimes()
        begin = time.thread_time()
        for piece, adder in enumerate(self._adders):
            for worker in range(WORKERS):
                adder.take(self._payloads[worker, piece], times, first=worker == 0)
            answer = adder.answer(round_number, times)
        server = time.thread_time() - begin
        payload = np.frombuffer(answer, np.uint8).copy()
        for rounds in self._workers:
            begin = time.thread_time()
            for i in range(self._pieces):
                rounds.decode(i, payload)
            decompress += (time.thread_time() - begin) / WORKERS
            rounds.keep()
        for adder in self._adders:
            adder.keep(times)
        details = {key: value for key, value in asdict(times).items() if key in ("decode_s", "sum_s", "encode_s")}
        return {"compress": compress, "server": server, "decompress": decompress, **details}


def measured(servers: int, repeats: int) -> Parts:
    """Medians of the processor time of all schemes, in ms. They take turns, so that caches hold the others' arrays."""
    runs: dict[str, Callable[[int], dict[str, float]]] = {name: SchemeParts(name, servers).run for name in SCHEMES}
    runs[THC] = ThcParts(servers).run
    found: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    warm_up = 2
    for number in range(repeats + warm_up):
        for name, run in runs.items():
            found[name].append(run(number + 1))
    return {
        name: {part: statistics.median(one[part] for one in all_of[warm_up:]) * 1e3 for part in all_of[0]}
        for name, all_of in found.items()
    }


@dataclass(frozen=True)
class Link:
    """Bytes of a round, of frames, on the link of a server's host."""

    bytes_in: float
    bytes_out: float


def network_ms(scheme: str, link: Link, servers: int, gbit: float) -> float:
    """Time of a round's bytes at a rate.

    With one server, streamed schemes use both directions at once, each a half of the link. If every host is a worker
    and a server, all directions are both up and down, and nothing is gained.
    """
    both = servers == 1 and scheme in STREAMED
    count = max(link.bytes_in, link.bytes_out) if both else link.bytes_in + link.bytes_out
    if servers > 1:
        count /= 2  # both directions of this host carry all of its traffic up and down
    return count * 8 / gbit / 1e6


def computed_ms(
    scheme: str, parts: dict[str, float], link: Link, servers: int, gbit: float, *, at_workers: bool = True
) -> float:
    """A round whose parts follow each other. at_workers: with compression and decompression by workers."""
    work = parts["server"] + (parts["compress"] + parts["decompress"] if at_workers else 0.0)
    return work + network_ms(scheme, link, servers, gbit)
