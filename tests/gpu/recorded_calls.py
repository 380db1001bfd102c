"""A CUDA graph on the CPU, for kernels in Triton's interpreter: calls with their addresses and numbers, frozen.

As in a graph, nothing is done while calls are recorded, numbers of Python are what they were then, and what the host
would have to wait for is an error. Memory that a call returns is kept. And: how many calls there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from byteps_thc.gpu.launch import Launcher

#: They bring numbers from the device, or tensors from the host.
WAITING = {"aten::_local_scalar_dense", "aten::lift_fresh", "aten::lift_fresh_copy", "aten::_to_copy"}

Launch = Callable[..., None]


def record_calls(work: Callable[[], None]) -> Callable[[], None]:
    """A Record: see pipeline/device/recording.py."""
    calls: list[Callable[[], object]] = []

    def record(launch: Launch, *arguments: Any) -> None:
        calls.append(lambda: launch(*arguments))

    with _launches(record), _Recorded(calls):
        work()
    assert calls, "nothing was recorded"

    def replay() -> None:
        for call in calls:
            call()

    return replay


@contextmanager
def counted_calls() -> Iterator[list[str]]:
    """The names of what is called: operators that are no views, and kernels."""
    calls: list[str] = []

    def count(launch: Launch, *arguments: Any) -> None:
        count_as_one("kernel", lambda: launch(*arguments))

    with _launches(count), _Counted(calls):
        yield calls


def count_as_one(name: str, work: Callable[[], None]) -> None:
    """Do what counted_calls() has as one call."""
    mode = torch.utils._python_dispatch._get_current_dispatch_mode()
    if isinstance(mode, _Counted):
        mode.calls.append(name)
    with _disable_current_modes():
        work()


@contextmanager
def _launches(instead: Callable[..., None]) -> Iterator[None]:
    launch = Launcher.__call__
    Launcher.__call__ = lambda *arguments: instead(launch, *arguments)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Launcher.__call__ = launch  # type: ignore[method-assign]


class _Recorded(TorchDispatchMode):
    def __init__(self, calls: list[Callable[[], object]]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        assert name not in WAITING, f"{name} cannot be recorded"
        if func._schema.is_mutable:
            self._calls.append(lambda: func(*args, **kwargs))
            return kwargs.get("out", args[0])
        result = func(*args, **kwargs)
        if not func.is_view:
            assert isinstance(result, Tensor), name
            self._calls.append(lambda: result.copy_(func(*args, **kwargs)))
        return result


class _Counted(TorchDispatchMode):
    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.calls.append(func._schema.name)
        return func(*args, **(kwargs or {}))
