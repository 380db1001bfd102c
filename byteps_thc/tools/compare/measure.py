"""Bytes, error and processor time of every way to average the same gradients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from byteps_thc.config import ThcConfig
from byteps_thc.rank_settings import RankSettings
from byteps_thc.tools.break_even import speed
from byteps_thc.tools.break_even.model import Scheme
from byteps_thc.tools.compare.averages import average
from byteps_thc.tools.compare.gradients import Gradients, flat
from byteps_thc.tools.compare.power_sgd import power_sgd
from byteps_thc.transport.recorder import moved_bytes

_Result = TypeVar("_Result")
POWER_SGD_RANK = 4
SCHEMES: dict[str, ThcConfig | torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "THC 2 bits": ThcConfig(bits=2),
    "THC 3 bits": ThcConfig(bits=3),
    "THC 4 bits": ThcConfig(bits=4),
    "THC default": ThcConfig(),
    "THC 6 bits": ThcConfig(bits=6),
    "THC 8 bits": ThcConfig(bits=8),
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
    for name, config in SCHEMES.items():
        made = average(vectors, config)
        encode_s, decode_s = _speed(config, vectors[0], workers, share_s)
        yield Measured(name, 2 * made.sent_bits, made.nmse, encode_s, decode_s)
    yield _power_sgd(gradients, vectors, share_s)


def _speed(config: ThcConfig | torch.dtype, vector: Tensor, workers: int, seconds: float) -> tuple[float, float]:
    """encode_s and decode_s."""
    if isinstance(config, torch.dtype):
        both_s = 0.0 if config == torch.float32 else speed.time_bf16(1, vector.numel(), seconds) or 0.0
        return both_s / 2, both_s / 2
    settings = RankSettings.of(config, workers)
    host = speed.measure(settings, threads=1, parameters=vector.numel(), seconds=seconds)
    return host.encode_s, host.average_s + host.decode_s


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
