"""Repeated launches of kernels, without Triton's search for the compiled kernel: it takes longer than a launch."""

import itertools
import threading
from typing import Any

import torch
from torch import Tensor

from byteps_thc._scheme.gpu.frontend import INTERPRETED, PLAIN

#: AMD's kernels are specialized for more than _kind() knows.
_CACHED = not INTERPRETED and torch.version.hip is None
_INT32 = 0x7FFFFFFF
#: Engines launch from several threads, but Triton's interpreter, and perhaps the compiler, supports only one.
_TRITON = threading.Lock()
#: Per thread, so that two tiles of 8192 share a multiprocessor.
_REGISTERS = 128


def register_limit() -> dict[str, Any]:
    """Option for kernels that would use more registers than occupancy allows."""
    return {} if PLAIN else {"maxnreg": _REGISTERS}


class Launcher:
    """A kernel on one-dimensional grids. options: of the compiler, the same in all launches."""

    def __init__(self, kernel: Any, **options: Any) -> None:
        self._kernel, self._options = kernel, options
        self._compiled: dict[tuple[Any, ...], Any] = {}  # like Triton's cache, never emptied
        #: arguments that the kernel is specialized for
        self._special = [not parameter.do_not_specialize for parameter in getattr(kernel, "params", ())]

    def resources(self) -> list[tuple[int, int]]:
        """Return registers of a thread, and spilled words, of each compiled kernel; none in the interpreter."""
        return [(compiled.n_regs, compiled.n_spills) for compiled in self._compiled.values()]

    def __call__(self, programs: int, arguments: tuple[Any, ...], constants: tuple[Any, ...], warps: int) -> None:
        """Launch it. arguments: tensors, the first on the current device, and numbers; constants follow them."""
        if not _CACHED:
            with _TRITON:
                self._kernel[(programs,)](*arguments, *constants, num_warps=warps, **self._options)
            return
        kinds = map(_kind, arguments, self._special or itertools.repeat(True))
        key = (arguments[0].get_device(), warps, constants, *kinds)
        compiled = self._compiled.get(key)
        if compiled is None:
            with _TRITON:
                launched = self._kernel[(programs,)](*arguments, *constants, num_warps=warps, **self._options)
            self._compiled[key] = launched
        else:
            compiled[(programs, 1, 1)](*arguments, *constants)


def _kind(argument: Tensor | float, special: bool) -> Any:
    """Return at least all properties that a kernel is compiled for. special: specialize for the number."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() & 15
    if isinstance(argument, float):
        return None
    wide = argument > _INT32
    return (argument == 1, argument & 15, wide) if special else wide
