"""Calls with which the host puts something on a device: operators, kernels and collectives, counted on the CPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from byteps_thc._scheme.gpu.launch import Launcher


@contextmanager
def counted_calls() -> Iterator[list[str]]:
    """The names of called operators that are no views, and of kernels."""
    calls: list[str] = []

    def count(launch: Callable[..., None], *arguments: Any) -> None:
        count_as_one("kernel", lambda: launch(*arguments))

    with launches(count), _Counted(calls):
        yield calls


def count_as_one(name: str, work: Callable[[], None]) -> None:
    """Do work that counted_calls() has as one call."""
    mode = torch.utils._python_dispatch._get_current_dispatch_mode()
    if isinstance(mode, _Counted):
        mode.calls.append(name)
    with _disable_current_modes():
        work()


@contextmanager
def launches(instead: Callable[..., None]) -> Iterator[None]:
    launch = Launcher.__call__
    Launcher.__call__ = lambda *arguments: instead(launch, *arguments)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Launcher.__call__ = launch  # type: ignore[method-assign]


class _Counted(TorchDispatchMode):
    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.calls.append(func._schema.name)
        return func(*args, **(kwargs or {}))
