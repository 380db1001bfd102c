"""Time of a DDP step with THC, stage by stage, on the host and on the GPU, and each stream's load.

    PYTHONPATH=evaluation/benchmarks/gpu:evaluation python -P evaluation/benchmarks/gpu/stages_profile.py
        [--json FILE] [--trace FILE] [--stand-in]

One step under torch.profiler, which itself costs the host time: shares tell more than milliseconds. The trace is for
chrome://tracing or ui.perfetto.dev.
"""

import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from place import Table, arguments_of, place_of
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function
from training import Hook, inputs_of, make_model, size_of, step_of, wrapped

WARM_UP = 4
KERNELS = 20  # the longest ones
#: (module, class, method): name of the row. Missing methods are reported as such.
STAGES = {
    ("byteps_thc.ddp.state", "ThcState", "average"): "the hook, with all below",
    ("byteps_thc.ddp.bucket_buffers", "BucketBuffers", "buffer"): "names of the bucket",
    ("byteps_thc._engine.agreement", "DeviceAgreement", "header"): "fingerprint",
    ("byteps_thc._engine.decoding.device_piece", "DevicePiece", "encode"): "codes to the owners",
    ("byteps_thc._engine.decoding.device_piece", "DevicePiece", "sum"): "averages of the own shard",
    ("byteps_thc._engine.decoding.device_piece", "DevicePiece", "decode"): "averages of all shards",
    ("byteps_thc._scheme.decoding.gpu.block_batch", "BlockBatch", "encode"): "encode",
    ("byteps_thc._scheme.decoding.gpu.block_batch", "BlockBatch", "recode"): "recode",
    ("byteps_thc._scheme.decoding.gpu.block_batch", "BlockBatch", "decode"): "decode",
    ("byteps_thc._net.rank_messages", "RankMessages", "all_to_all"): "all-to-all, begun",
    ("byteps_thc._net.rank_messages", "RankMessages", "all_gather"): "all-gather, begun",
    ("byteps_thc._engine.in_flight", "InFlight", "finish"): "future",
}


@contextmanager
def recorded_stages() -> Iterator[dict[str, bool]]:
    """Give the stages names in the trace. Returns whether each exists."""
    found = {}
    with ExitStack() as patches:
        for (module, kind, method), label in STAGES.items():
            owner = getattr(importlib.import_module(module), kind, None)
            found[label] = owner is not None and method in vars(owner)
            if found[label]:
                assert owner is not None
                patches.enter_context(mock.patch.object(owner, method, _recorded(vars(owner)[method], label)))
        yield found


def _recorded(method: Callable[..., Any], label: str) -> Callable[..., Any]:
    def recorded(*arguments: Any, **options: Any) -> Any:
        with record_function(label):
            return method(*arguments, **options)

    return recorded


def streams_of(trace: Path) -> list[tuple[str, float, float]]:
    """(stream, ms busy, ms from the first beginning to the last end on any stream), of a trace's kernels and copies."""
    events = json.loads(trace.read_text())["traceEvents"]
    on_gpu = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    if not on_gpu:
        return []
    whole_us = max(event["ts"] + event["dur"] for event in on_gpu) - min(event["ts"] for event in on_gpu)
    busy_us: dict[str, float] = {}
    for event in on_gpu:
        stream = str(event["args"]["stream"])
        busy_us[stream] = busy_us.get(stream, 0.0) + event["dur"]
    return [(stream, busy / 1e3, whole_us / 1e3) for stream, busy in sorted(busy_us.items())]


def main() -> None:
    arguments = arguments_of(
        __doc__, lambda parser: parser.add_argument("--trace", type=Path, default=Path("build/bench/gpu/trace.json"))
    )
    table = Table(arguments.json, ["stage of a step", "calls", "ms of the host", "ms of the GPU"])
    arguments.trace.parent.mkdir(parents=True, exist_ok=True)
    with place_of(arguments) as place:
        size = size_of(place)
        model = make_model(place, size)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if place.on_gpu else [])]
        with recorded_stages() as found, wrapped(place, model, Hook("THC")) as called:
            step = step_of(place, called, inputs_of(place, size), model)
            for _ in range(WARM_UP):
                step()
            place.synchronize()
            with profile(activities=activities) as profiler:
                step()
                place.synchronize()
        profiler.export_chrome_trace(str(arguments.trace))
        averages = profiler.key_averages()
        # A recorded name is in it twice: as a span of the host, with its kernels' time, and as a span of the GPU.
        events = {event.key: event for event in averages if event.device_type == DeviceType.CPU}
        kernels = [event for event in averages if event.device_type != DeviceType.CPU and event.key not in events]
        for label in STAGES.values():
            event = events.get(label)
            if event is None:
                table.add(label, "" if found[label] else "not in this version", None, None)
            else:
                gpu_ms = event.device_time_total / 1e3 if place.on_gpu else None
                table.add(label, f"{event.count}", event.cpu_time_total / 1e3, gpu_ms)
        for kernel in sorted(kernels, key=lambda event: -event.self_device_time_total)[:KERNELS]:
            table.add(f"kernel {kernel.key[:60]}", f"{kernel.count}", None, kernel.self_device_time_total / 1e3)
        for stream, busy_ms, whole_ms in streams_of(arguments.trace):
            table.add(f"stream {stream}, busy of {whole_ms:.2f} ms", "", None, busy_ms)


if __name__ == "__main__":
    main()
