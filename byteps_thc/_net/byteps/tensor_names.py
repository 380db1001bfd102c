"""Names of tensors: every name that users push is two tensors of BytePS's, which its pushes alternate between.

The server of BytePS 0.2.5 lets a fast worker's next push overwrite a sum that a slower worker has not pulled yet; with
two keys, nobody can be two pushes ahead, as long as a worker has one push of a name in flight at a time.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from byteps_thc._scheme.errors import InputError


def tensor_names(name: str) -> tuple[str, str]:
    """Return the names of the two BytePS tensors that pushes of `name` alternate between."""
    return name, f"{name}#odd"


class TensorNames:
    """Which of its two BytePS tensors a name's next push uses, what is in flight, and names for tensors without one."""

    def __init__(self) -> None:
        self._pushes: defaultdict[str, int] = defaultdict(int)
        self._kinds: dict[str, tuple[int, torch.dtype]] = {}
        self._in_flight: dict[str, int] = {}
        self._unnamed = 0

    def next_key(self, name: str, tensor: Tensor) -> str:
        """Return the BytePS tensor of the name's next push.

        InputError when the name had another size or dtype before, which would crash BytePS's processes.
        """
        kind = tensor.numel(), tensor.dtype
        known = self._kinds.setdefault(name, kind)
        if known != kind:
            raise InputError(f"{name!r} had {known[0]} elements of {known[1]} before, and now {kind[0]} of {kind[1]}")
        self._pushes[name] += 1
        return tensor_names(name)[self._pushes[name] % 2]

    def started(self, name: str, handle: int) -> None:
        """Note BytePS's handle of the name's last push."""
        self._in_flight[name] = handle

    def in_flight(self, name: str) -> int | None:
        """Return the handle of the name's last push; None without one that is still to be synchronized."""
        return self._in_flight.get(name)

    def finished(self, name: str, handle: int) -> None:
        """Note that a push was synchronized. Its handle is not valid any more."""
        if self._in_flight.get(name) == handle:
            del self._in_flight[name]

    def make_name(self) -> str:
        """Return a name that no other tensor has: numbers, in order of the calls."""
        self._unnamed += 1
        return f"unnamed.{self._unnamed}"

    def clear(self) -> None:
        """Count from zero, as a worker does that joins when BytePS starts again."""
        self._pushes.clear()
        self._kinds.clear()
        self._in_flight.clear()
        self._unnamed = 0
