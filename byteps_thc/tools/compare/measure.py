"""Bytes, error and processor time of every way to average the same gradients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from byteps_thc.baselines.codec import EncodeContext, VectorSpec
from byteps_thc.baselines.compare import compare
from byteps_thc.baselines.config import CodecConfig
from byteps_thc.baselines.dense import Bf16, DenseConfig, NoCompression
from byteps_thc.baselines.qsgd import Qsgd
from byteps_thc.baselines.top_k import TopK
from byteps_thc.config import ThcConfig
from byteps_thc.rank_settings import RankSettings
from byteps_thc.tools.break_even import speed
from byteps_thc.tools.break_even.model import Scheme
from byteps_thc.tools.compare.gradients import Gradients, flat
from byteps_thc.tools.compare.power_sgd import power_sgd
from byteps_thc.transport.recorder import moved_bytes

_Result = TypeVar("_Result")
POWER_SGD_RANK = 4
SCHEMES: dict[str, ThcConfig | DenseConfig | CodecConfig] = {
    "fp32": NoCompression(),
    "bf16": Bf16(),
    "THC 2 bits": ThcConfig(bits=2),
    "THC 3 bits": ThcConfig(bits=3),
    "THC 4 bits": ThcConfig(bits=4),
    "THC default": ThcConfig(),
    "THC 6 bits": ThcConfig(bits=6),
    "THC 8 bits": ThcConfig(bits=8),
    "TopK 1%": TopK(ratio=0.01),
    "QSGD 4 bits": Qsgd(bits=4),
    "int8 (QSGD 8 bits)": Qsgd(bits=8),
}
#: What error of a step is called small: 4-bit THC has less, with which trainings come to the same loss.
SMALL_NMSE = 0.025


@dataclass(frozen=True)
class Measured:
    """One way. bits_both_ways: of a parameter, sent and received by a rank. nmse: |average - exact|^2 / |exact|^2.

    encode_s, decode_s: processor time of a rank for a parameter, with one thread; averaging the own share belongs to
    decode_s. returns_loss: whether it keeps what a step lost, and adds it to the next.
    """

    name: str
    bits_both_ways: float
    nmse: float
    encode_s: float
    decode_s: float
    returns_loss: bool = False

    @property
    def model(self) -> Scheme:
        """As `thc break-even` computes with it."""
        return Scheme(self.name, self.bits_both_ways / 2 / 8, self.encode_s + self.decode_s)


def measure(gradients: Gradients, seconds: float) -> Iterator[Measured]:
    """Measure all; seconds: about how long in all, errors apart."""
    vectors, workers = flat(gradients), len(gradients)
    share_s = seconds / (len(SCHEMES) + 1)
    for row in compare(vectors, SCHEMES):
        config = SCHEMES[row.scheme]
        encode_s, decode_s = _speed(config, vectors[0], workers, share_s)
        returns_loss = isinstance(config, TopK)
        yield Measured(row.scheme, 2 * row.sent_bits, row.nmse, encode_s, decode_s, returns_loss)
    yield _power_sgd(gradients, vectors, share_s)


def _speed(
    config: ThcConfig | DenseConfig | CodecConfig, vector: Tensor, workers: int, seconds: float
) -> tuple[float, float]:
    """encode_s and decode_s."""
    if isinstance(config, CodecConfig):
        return _codec_speed(config, vector, workers, seconds)
    if isinstance(config, DenseConfig):
        both_s = 0.0 if config.dtype is None else speed.time_bf16(1, vector.numel(), seconds) or 0.0
        return both_s / 2, both_s / 2
    settings = RankSettings.of(config, workers)
    host = speed.measure(settings, threads=1, parameters=vector.numel(), seconds=seconds)
    return host.encode_s, host.average_s + host.decode_s


def _codec_speed(config: CodecConfig, vector: Tensor, workers: int, seconds: float) -> tuple[float, float]:
    """A rank decodes what all ranks send."""
    codec, spec = config.codec(), VectorSpec.of("gradient", {"gradient": vector.numel()})
    context = EncodeContext(worker=0, round=0, step=0)
    payload = codec.encode(vector, spec, context)

    def decode() -> None:
        codec.combine([codec.decode(payload, spec, 0) for _ in range(workers)])

    times = [_time_s(work, seconds / 2) for work in (lambda: codec.encode(vector, spec, context), decode)]
    return times[0] / vector.numel(), times[1] / vector.numel()


def _time_s(work: Callable[[], object], seconds: float) -> float:
    """The fastest call, in processor time of one thread."""

    def timed_s() -> float:
        start = time.thread_time()
        work()
        return time.thread_time() - start

    return min(_repeated(timed_s, seconds))


def _repeated(work: Callable[[], _Result], seconds: float) -> Iterator[_Result]:
    """Call it with one thread until the time is over, at least twice: the first call warms up."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        end, calls = time.monotonic() + seconds, 0
        while calls < 2 or time.monotonic() < end:
            yield work()
            calls += 1
    finally:
        torch.set_num_threads(threads)


def _power_sgd(gradients: Gradients, vectors: list[Tensor], seconds: float) -> Measured:
    workers, coordinates = len(gradients), vectors[0].numel()
    low = min(_repeated(lambda: power_sgd(gradients, POWER_SGD_RANK), seconds), key=lambda low: low.compute_s)
    exact = torch.stack(vectors).double().mean(dim=0)
    nmse = float((low.average.double() - exact).square().sum() / exact.square().sum())
    bits = 2 * 8 * moved_bytes(2 * 4 * low.numbers, workers) / coordinates
    return Measured(f"PowerSGD rank {POWER_SGD_RANK}", bits, nmse, low.compute_s / coordinates, 0.0, returns_loss=True)
