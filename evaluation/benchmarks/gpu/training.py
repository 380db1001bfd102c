"""The model whose steps are measured, and DDP around it with one of several hooks."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from place import Place
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc.ddp import ThcState, thc_hook


@dataclass(frozen=True)
class Size:
    """Size of a transformer, and of its input."""

    width: int
    layers: int
    vocabulary: int
    batch: int
    length: int


#: 110,253,056 parameters, 8192 tokens; and a model that shows nothing but that it runs.
LARGE, TINY = Size(768, 12, 32768, 16, 512), Size(32, 1, 64, 2, 8)


def size_of(place: Place) -> Size:
    return LARGE if place.on_gpu else TINY


def make_model(place: Place, size: Size) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        size.width, size.width // 64 or 1, 4 * size.width, dropout=0.0, batch_first=True, norm_first=True
    )
    encoder = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
    return nn.Sequential(encoder, nn.Linear(size.width, size.vocabulary)).to(place.device)


def inputs_of(place: Place, size: Size, times: int = 1) -> Tensor:
    return torch.randn(times * size.batch, size.length, size.width, device=place.device)


def autocast(place: Place) -> AbstractContextManager[object]:
    return torch.autocast("cuda", torch.bfloat16) if place.on_gpu else nullcontext()


@dataclass
class Hook:
    """Way to average: "fp32" (DDP's own), "nothing", "bf16" or "THC". hook_ms: host time in each bucket's hook."""

    name: str
    policy: CompressionPolicy = field(default_factory=CompressionPolicy)
    hook_ms: list[float] = field(default_factory=list)


@contextmanager
def wrapped(
    place: Place, model: nn.Module, hook: Hook, *, bucket_cap_mb: float = 25, compiled: bool = False
) -> Iterator[Callable[[Tensor], Tensor]]:
    """DDP around the model, with the hook, for the time of the block."""
    gc.collect()  # the DDP before listens to the same parameters
    options: dict[str, Any] = {"device_ids": [place.device.index]} if place.on_gpu else {}
    ddp = DistributedDataParallel(
        model, process_group=place.group, gradient_as_bucket_view=True, bucket_cap_mb=bucket_cap_mb, **options
    )
    state = None
    if hook.name == "nothing":
        ddp.register_comm_hook(None, idle_hook)
    elif hook.name == "bf16":
        # torch wants NCCL for bf16.
        half = default_hooks.bf16_compress_hook if place.on_gpu else default_hooks.fp16_compress_hook
        ddp.register_comm_hook(place.group, half)
    elif hook.name == "THC":
        state = ThcState(place.group, model=ddp)
        state.engine.close()
        assert state._averaging is not None
        state._averaging.engine = place.engine(hook.policy)
        ddp.register_comm_hook(state, _timed(hook))
    else:
        assert hook.name == "fp32", hook.name
    called = torch.compile(ddp, backend="inductor" if place.on_gpu else "eager") if compiled else ddp
    try:
        yield called
    finally:
        place.synchronize()
        if state is not None:
            state.close()


def step_of(place: Place, called: Callable[[Tensor], Tensor], inputs: Tensor, model: nn.Module) -> Callable[[], None]:
    """A step without an optimizer: forward and backward."""

    def step() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        with autocast(place):
            loss = called(inputs).float().square().mean()
        loss.backward()

    return step


def ms_of_steps(place: Place, step: Callable[[], None], *, warm_up: int, steps: int, synchronised: bool) -> float:
    """Milliseconds a step: the median if the host waits for each, the mean if it may run ahead."""
    for _ in range(warm_up):
        step()
    place.synchronize()
    times, start = [], time.perf_counter()
    for _ in range(steps):
        begun = time.perf_counter()
        step()
        if synchronised:
            place.synchronize()
            times.append(time.perf_counter() - begun)
    place.synchronize()
    mean = (time.perf_counter() - start) / steps
    return 1e3 * (sorted(times)[steps // 2] if synchronised else mean)


def idle_hook(state, bucket):  # type: ignore[no-untyped-def]  # noqa: ARG001  # DDP compares annotations with types
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _timed(hook: Hook) -> Any:
    def timed_hook(state, bucket):  # type: ignore[no-untyped-def]
        start = time.perf_counter()
        future = thc_hook(state, bucket)
        hook.hook_ms.append((time.perf_counter() - start) * 1e3)
        return future

    return timed_hook
