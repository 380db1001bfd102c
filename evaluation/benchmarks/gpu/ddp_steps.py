"""THC's share of a DDP step, hidden and not hidden: one rank and no network.

    PYTHONPATH=evaluation/benchmarks/gpu:evaluation python -P evaluation/benchmarks/gpu/ddp_steps.py

A transformer of 110 million parameters in bf16 autocast, forward and backward. With one rank THC can only cost time:
the target is the bf16 hook's time and 3 ms.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from place import Place, Table, arguments_of, place_of
from torch import Tensor, nn
from training import Hook, inputs_of, make_model, ms_of_steps, size_of, step_of, wrapped

HOOKS = ("fp32", "nothing", "bf16", "THC")


def variants() -> Iterator[tuple[str, Hook, dict[str, Any]]]:
    """The measured variants, with options of measure(); the most informative first."""
    for name in HOOKS:
        yield f"{name}, 20 steps without waiting", Hook(name), {}
    for name in HOOKS:
        yield f"{name}, the host waits for every step", Hook(name), {"synchronised": True}
    for cap in (100, 25, 50, 200):
        yield f"THC, bucket_cap_mb={cap}", Hook("THC"), {"bucket_cap_mb": cap}
    for name in HOOKS:
        yield f"{name}, 32768 tokens", Hook(name), {"times": 4, "steps": 8}
    for name in HOOKS:
        yield f"{name}, torch.compile", Hook(name), {"compiled": True}


def measure(
    place: Place,
    model: nn.Module,
    inputs: Tensor,
    hook: Hook,
    *,
    times: int = 1,
    bucket_cap_mb: float = 25,
    compiled: bool = False,
    synchronised: bool = False,
    steps: int = 20,
    warm_up: int = 4,
) -> tuple[float, float | None]:
    """Milliseconds of a step, and of the host in the hook."""
    if not place.on_gpu:
        times, steps, warm_up = 1, 1, 1
    if times > 1:
        inputs = torch.cat([inputs] * times)
    with wrapped(place, model, hook, bucket_cap_mb=bucket_cap_mb, compiled=compiled) as called:
        step = step_of(place, called, inputs, model)
        step_ms = ms_of_steps(place, step, warm_up=warm_up, steps=steps, synchronised=synchronised)
    later = hook.hook_ms[warm_up * len(hook.hook_ms) // (warm_up + steps) :]
    return step_ms, sum(later) / steps if later else None


def main() -> None:
    arguments = arguments_of(__doc__)
    table = Table(arguments.json, ["step", "ms a step", "ms of the host in the hook"])
    with place_of(arguments) as place:
        size = size_of(place)
        model, inputs = make_model(place, size), inputs_of(place, size)
        known = set(inspect.signature(measure).parameters)
        for what, hook, options in variants():
            assert options.keys() <= known
            try:
                table.add(what, *measure(place, model, inputs, hook, **options))
            except Exception as error:  # the others are measured all the same
                table.add(what, None, f"failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}")


if __name__ == "__main__":
    main()
