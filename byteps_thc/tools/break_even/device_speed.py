"""What THC costs on a GPU: the host's part of a bucket, and the kernels' time for a parameter.

Measured where there is a GPU, else what was once recorded on one (docs/gpu.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from byteps_thc.errors import ConfigurationError

if TYPE_CHECKING:
    import torch

_FP32_BYTES = 4
_REPETITIONS = 5
_DEADLINE = timedelta(seconds=60)
#: Of a gradient that the host's part of a bucket is measured with: what the kernels take is nothing beside it.
_SMALL = 1 << 14
#: Of one whose kernels take longer than the host's part; less where a GPU has not 16 times as many bytes free.
_LARGE = 1 << 28
_LEAST_BUCKET_MB = 1e-3
_BYTES_OF_LARGE = 16


@dataclass(frozen=True)
class DeviceSpeed:
    """source: where the numbers are from, for readers.

    host_s: of the host, for a bucket of THC. kernels_s: of the GPU, for a parameter. bf16_bucket_s: what DDP's bf16
    hook adds to a step, for a bucket.
    """

    source: str
    host_s: float
    kernels_s: float
    bf16_bucket_s: float

    def thc_s(self, parameters: int, buckets: int, share: int = 1) -> float:
        """What THC takes for a parameter of a model of that many; share: ranks of a node that share the kernels' work.

        The exchange within the node is left out.
        """
        return self.kernels_s / share + self.host_s * buckets / parameters

    def bf16_s(self, parameters: int, buckets: int) -> float:
        """What bf16 takes for a parameter."""
        return self.bf16_bucket_s * buckets / parameters

    def given(self, *, host_ms: float | None, kernel_ps: float | None, bf16_ms: float | None) -> DeviceSpeed:
        """Return the same with numbers that a user knows better. ConfigurationError for what is no time."""
        options = {"--host-ms": host_ms, "--kernel-ps": kernel_ps, "--bf16-ms": bf16_ms}
        for name, value in options.items():
            if value is not None and not 0 <= value < float("inf"):
                raise ConfigurationError(f"{name} must be a time, 0 or more, not {value:g}")
        told = [name for name, value in options.items() if value is not None]
        return replace(
            self,
            source=f"{self.source}; {', '.join(told)} as given" if told else self.source,
            host_s=self.host_s if host_ms is None else host_ms * 1e-3,
            kernels_s=self.kernels_s if kernel_ps is None else kernel_ps * 1e-12,
            bf16_bucket_s=self.bf16_bucket_s if bf16_ms is None else bf16_ms * 1e-3,
        )


#: A step of DDP, 110,253,056 parameters in 14 buckets, one rank, without CUDA graphs (docs/gpu.md):
#: the hook's time on the host, the kernels' on the GPU, and what the bf16 hook adds to a step without hooks.
RECORDED = DeviceSpeed(
    "recorded on an H100 at commit 778e462, not measured here",
    host_s=19.8e-3 / 14,
    kernels_s=2.4e-3 / 110_253_056,
    bf16_bucket_s=(36.4e-3 - 30.6e-3) / 14,
)


def buckets_of(parameters: int, bucket_mb: float) -> int:
    """DDP's buckets of a model's fp32 gradients, at most; ConfigurationError for buckets of next to no size."""
    if not _LEAST_BUCKET_MB <= bucket_mb < float("inf"):
        raise ConfigurationError(f"--bucket-mb must be {_LEAST_BUCKET_MB:g} or more (MiB), not {bucket_mb:g}")
    return max(1, -(-parameters * _FP32_BYTES // int(bucket_mb * (1 << 20))))


def device_speed(bucket_mb: float, seconds: float) -> DeviceSpeed:
    """Return what the current GPU measures in about so many seconds, RECORDED where there is none."""
    try:
        import torch
    except ModuleNotFoundError:
        return RECORDED
    if not torch.cuda.is_available():
        return RECORDED
    device = torch.device("cuda", torch.cuda.current_device())
    large = min(_LARGE, torch.cuda.mem_get_info(device)[0] // _BYTES_OF_LARGE)
    name = torch.cuda.get_device_name(device)
    return measure(f"measured on this {name}, one rank on NCCL", "nccl", device, large, bucket_mb, seconds)


def measure(
    source: str, backend: str, device: torch.device, large: int, bucket_mb: float, seconds: float
) -> DeviceSpeed:
    """Measure with one rank, by ThcReducer. large: parameters that the kernels are measured with.

    kernels_s has the host's part of one bucket in it, as far as that takes longer.
    """
    import torch
    import torch.distributed as dist

    from byteps_thc.reducer import ThcReducer

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with _alone(backend), ThcReducer() as reducer:

        def average(name: str, size: int) -> float:
            gradient = torch.ones(size, device=device)
            return _least_s(lambda: reducer.all_reduce({name: gradient}), wait, seconds / 3)

        bucket = torch.ones(max(1, int(bucket_mb * (1 << 20)) // _FP32_BYTES), device=device)
        half = torch.empty_like(bucket, dtype=torch.bfloat16)

        def round_trip() -> None:
            half.copy_(bucket)
            dist.all_reduce(half)
            bucket.copy_(half)

        return DeviceSpeed(
            source,
            host_s=average("small", _SMALL),
            kernels_s=average("large", large) / large,
            bf16_bucket_s=_least_s(round_trip, wait, seconds / 3),
        )


@contextmanager
def _alone(backend: str) -> Iterator[None]:
    """A process group of this process, the default one meanwhile."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore  # torch.distributed's, which does not list it

    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=_DEADLINE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _least_s(work: Callable[[], None], wait: Callable[[], None], seconds: float) -> float:
    """Seconds of a call when calls follow each other; the least of some repetitions that take about so long."""
    for _ in range(3):  # kernels are compiled, memory is there
        work()
    wait()
    start = time.perf_counter()
    work()
    wait()
    calls = max(1, int(seconds / _REPETITIONS / max(time.perf_counter() - start, 1e-6)))
    times = []
    for _ in range(_REPETITIONS):
        start = time.perf_counter()
        for _ in range(calls):
            work()
        wait()
        times.append((time.perf_counter() - start) / calls)
    return min(times)
