"""The ways to average gradients that the demo compares, behind one method."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from typing_extensions import override

from byteps_thc._engine.averager import GradientAverager
from byteps_thc._scheme.compressor import Compressor
from byteps_thc._scheme.limits import default_threads
from byteps_thc._scheme.wire.layout import Header
from thc_lab.demo.network import Network
from thc_lab.demo.settings import DemoSettings, RunResult, Scheme, Traffic

Gradients = dict[str, npt.NDArray[np.float32]]

IP_UDP_HEADER_BYTES = 20 + 8


class Averaging(Protocol):
    """Replaces every array by its average over the workers."""

    def average(self, gradients: Gradients) -> None:
        """In place; collective: every worker calls it with the same names and shapes."""

    def record(self, result: RunResult) -> None:
        """Append the costs of the last average() to `result`."""

    def finish(self, result: RunResult) -> None:
        """Write totals into `result` and let go of the network."""


class GlooAveraging(Averaging):
    """fp32 sum by torch.distributed's gloo all-reduce, the usual way without a parameter server."""

    def __init__(self) -> None:
        self._communicate_ms = 0.0

    @override
    def average(self, gradients: Gradients) -> None:
        start = time.perf_counter()
        for gradient in gradients.values():
            tensor = torch.from_numpy(gradient)
            dist.all_reduce(tensor)
            tensor.div_(dist.get_world_size())
        self._communicate_ms = (time.perf_counter() - start) * 1e3

    @override
    def record(self, result: RunResult) -> None:
        result.encode_ms.append(0.0)
        result.communicate_ms.append(self._communicate_ms)
        result.decode_ms.append(0.0)

    @override
    def finish(self, result: RunResult) -> None:
        """Write what fp32 through a parameter server takes: 4 bytes a coordinate, up and down."""
        fp32_bytes = 4.0 * result.coordinates
        result.traffic = Traffic(fp32_bytes, fp32_bytes, fp32_bytes, fp32_bytes)


class ThcAveraging(Averaging):
    """THC or Uniform THC through an aggregator."""

    def __init__(self, scheme: Scheme, settings: DemoSettings, network: Network, worker: int) -> None:
        config = settings.thc_config(scheme)
        threads = default_threads(settings.workers)  # all workers are on this host
        compressor = Compressor(config, workers=settings.workers, worker=worker, threads=threads)
        self._session = network.open_session(worker, scheme, settings)
        self._averager = GradientAverager(self._session, compressor)
        self._steps = 0
        table = config.resolve(settings.workers)
        self._configuration: dict[str, float | int | str] = {
            "bits": config.code_bits,
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
        stats = self._averager.statistics()
        result.encode_ms.append(stats.encode_ms)
        result.communicate_ms.append(stats.communicate_ms)
        result.decode_ms.append(stats.decode_ms)

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
            payload_up=per_step(counters["bytes_sent"], packets_up, -Header.SIZE_BYTES),
            payload_down=per_step(counters["bytes_received"], packets_down, -Header.SIZE_BYTES),
            wire_up=per_step(counters["bytes_sent"], packets_up, IP_UDP_HEADER_BYTES),
            wire_down=per_step(counters["bytes_received"], packets_down, IP_UDP_HEADER_BYTES),
        )


def make_averaging(scheme: Scheme, settings: DemoSettings, network: Network, worker: int) -> Averaging:
    """Return the averaging that `scheme` names; one with an aggregator joins its job there."""
    if scheme is Scheme.UNCOMPRESSED:
        return GlooAveraging()
    return ThcAveraging(scheme, settings, network, worker)
