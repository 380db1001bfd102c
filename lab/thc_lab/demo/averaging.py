"""The ways to average gradients that the demo compares, behind one method."""

import time
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from typing_extensions import override

from byteps_thc._base.limits import default_threads
from byteps_thc._base.wire.layout import HEADER_BYTES
from byteps_thc._engine.adding.averager import GradientAverager
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.statistics import CompressionStats
from byteps_thc._own_loop.thc_reducer import ThcReducer
from byteps_thc._scheme.adding.compressor import Compressor
from thc_lab.demo.network import Network, ServerNetwork
from thc_lab.demo.settings import DemoSettings, RunResult, Scheme, Traffic, ring_share

Gradients = dict[str, npt.NDArray[np.float32]]

IP_UDP_HEADER_BYTES = 20 + 8


class Averaging(Protocol):
    """Replaces every array by its average over the workers."""

    def average(self, gradients: Gradients) -> None:
        """Average in place; collective: every worker calls it with the same names and shapes."""

    def record(self, result: RunResult) -> None:
        """Append the costs of the last average() to `result`."""

    def finish(self, result: RunResult) -> None:
        """Write totals into `result` and let go of the network."""


class GlooAveraging(Averaging):
    """torch.distributed's all-reduce on gloo, in fp32 or bf16: DDP's own average, and torch's bf16 hook."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._communicate_ms = 0.0
        self._steps = 0

    @override
    def average(self, gradients: Gradients) -> None:
        start = time.perf_counter()
        for gradient in gradients.values():
            tensor = torch.from_numpy(gradient)
            sent = tensor.to(self._dtype).div_(dist.get_world_size())  # fp32: the tensor itself
            dist.all_reduce(sent)
            tensor.copy_(sent)
        self._communicate_ms = (time.perf_counter() - start) * 1e3
        self._steps += 1

    @override
    def record(self, result: RunResult) -> None:
        result.encode_ms.append(0.0)
        result.communicate_ms.append(self._communicate_ms)
        result.decode_ms.append(0.0)

    @override
    def finish(self, result: RunResult) -> None:
        """Write the traffic through a parameter server, a number up and down per coordinate, and of this ring."""
        size_bytes = float(self._dtype.itemsize * result.coordinates)
        result.traffic = Traffic(size_bytes, size_bytes, size_bytes, size_bytes)
        result.sent_bytes = ring_share(dist.get_world_size()) * size_bytes * self._steps


class RanksAveraging(Averaging):
    """THC without a server: the ranks decode, sum and encode for each other."""

    def __init__(self, settings: DemoSettings) -> None:
        policy = CompressionPolicy(threads=default_threads(settings.workers))  # all workers are on this machine
        self._reducer = ThcReducer(bits=settings.bits, seed=settings.seed, policy=policy)
        self._bits = settings.bits

    @override
    def average(self, gradients: Gradients) -> None:
        self._reducer.all_reduce({name: torch.from_numpy(gradient) for name, gradient in gradients.items()})

    @override
    def record(self, result: RunResult) -> None:
        record_times(result, self._reducer.compression_stats())

    @override
    def finish(self, result: RunResult) -> None:
        """Write the payload that the engine counted."""
        stats = self._reducer.compression_stats()
        self._reducer.close()
        result.traffic = Traffic(stats.sent_bytes / stats.steps, stats.received_bytes / stats.steps, 0.0, 0.0)
        result.configuration = {"bits": self._bits}
        result.sent_bytes = float(stats.sent_bytes)


class ThcAveraging(Averaging):
    """THC or Uniform THC through an aggregator."""

    def __init__(self, scheme: Scheme, settings: DemoSettings, network: Network, worker: int) -> None:
        codes = settings.codes(scheme)
        threads = default_threads(settings.workers)  # all workers are on this host
        compressor = Compressor(codes, workers=settings.workers, worker=worker, threads=threads)
        self._session = network.open_session(worker, scheme, settings)
        self._averager = GradientAverager(self._session, compressor)
        self._steps, self._workers = 0, settings.workers
        self._beside_workers = isinstance(network, ServerNetwork)
        table = codes.resolve(settings.workers)
        self._configuration: dict[str, float | int | str] = {
            "bits": codes.bits,
            "value_bits": table.value_bits,
            "granularity": table.table.granularity,
            "p": table.table.p,
            "codes_per_packet": self._session.codes_per_packet,
        }

    @override
    def average(self, gradients: Gradients) -> None:
        self._averager.average(gradients)
        self._steps += 1

    @override
    def record(self, result: RunResult) -> None:
        record_times(result, self._averager.statistics())

    @override
    def finish(self, result: RunResult) -> None:
        """Write the bytes that the session counted, retransmissions included, and leave it."""
        counters = self._session.counters()
        self._session.close()
        result.counters = counters
        result.configuration = self._configuration
        packets_up = counters["norm_sent"] + counters["codes_sent"]
        packets_down = counters["max_norm_received"] + counters["aggregate_received"]

        def per_step(size_bytes: int, packets: int, header_bytes: int) -> float:
            return (size_bytes + packets * header_bytes) / self._steps

        result.traffic = Traffic(
            payload_up=per_step(counters["bytes_sent"], packets_up, -HEADER_BYTES),
            payload_down=per_step(counters["bytes_received"], packets_down, -HEADER_BYTES),
            wire_up=per_step(counters["bytes_sent"], packets_up, IP_UDP_HEADER_BYTES),
            wire_down=per_step(counters["bytes_received"], packets_down, IP_UDP_HEADER_BYTES),
        )
        result.sent_bytes = result.traffic.wire_up * self._steps
        if self._beside_workers:  # servers on the workers' hosts send, too, and one of n packets stays on its host
            both_ways = result.sent_bytes + result.traffic.wire_down * self._steps
            result.sent_bytes = both_ways * ring_share(self._workers) / 2


def record_times(result: RunResult, stats: CompressionStats) -> None:
    """Append the times of the last average."""
    result.encode_ms.append(stats.encode_ms)
    result.communicate_ms.append(stats.communicate_ms)
    result.decode_ms.append(stats.decode_ms)


def make_averaging(scheme: Scheme, settings: DemoSettings, network: Network, worker: int) -> Averaging:
    """Return the averaging that `scheme` names; one with an aggregator joins its job there."""
    if scheme is Scheme.FP32:
        return GlooAveraging(torch.float32)
    if scheme is Scheme.BF16:
        return GlooAveraging(torch.bfloat16)
    if scheme is Scheme.THC_RANKS:
        return RanksAveraging(settings)
    return ThcAveraging(scheme, settings, network, worker)
