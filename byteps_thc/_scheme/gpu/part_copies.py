"""Copies parts of a tensor to a packed one, and back: one launch, for any number of parts."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from byteps_thc._scheme.gpu.frontend import L, arange, constexpr, jit
from byteps_thc._scheme.gpu.launch import Launcher
from byteps_thc._scheme.gpu.layouts import streamed

TILE = 1024
WARPS = 4
_TILE, _WARPS = constexpr(TILE), constexpr(WARPS)
#: Elements travel as integers, which keeps all bits.
_AS_INTEGERS = {2: torch.int16, 4: torch.int32}


@jit(do_not_specialize=["parts", "size"])
def copy_parts_kernel(whole, packed, starts, sources, parts, size, STEPS: constexpr, PACK: constexpr):
    """packed[size] of `whole`, with PACK, or the reverse. int16 or int32.

    starts, sources: int64[parts], beginnings in packed, ascending from 0, and in whole; below 0: zeros, which are not
    copied back. STEPS: bits of parts - 1.
    """
    i = L.program_id(0).to(L.int64) * _TILE + arange(_TILE, streamed(_TILE, _WARPS, 4))
    part = (i * 0).to(L.int32)
    for k in L.static_range(STEPS - 1, -1, -1):  # binary search for the part of i
        later = part + (1 << k)
        inside = later < parts
        part = L.where(inside & (L.load(starts + later, inside, 0) <= i), later, part)
    source = L.load(sources + part)
    at = source + i - L.load(starts + part)
    there = (i < size) & (source >= 0)
    if PACK:
        L.store(packed + i, L.load(whole + at, there, 0), i < size)
    else:
        L.store(whole + at, L.load(packed + i, there, 0), there)


_copy_parts = Launcher(copy_parts_kernel)


class PartCopies:
    """Copies to and from a packed tensor, in the order of the calls.

    parts: (first element in the whole tensor, or -1 for zeros; elements, not 0) in the order of the packed tensor, at
    least one. Their table takes 16 bytes a part on `device`.
    """

    def __init__(self, parts: Sequence[tuple[int, int]], device: torch.device) -> None:
        sources, sizes = zip(*parts, strict=True)
        starts = [*itertools.accumulate(sizes, initial=0)]
        self.size = starts.pop()
        self._starts, self._sources = torch.tensor([starts, sources], device=device)
        self._steps = (len(parts) - 1).bit_length()

    def pack(self, whole: Tensor, packed: Tensor) -> None:
        """Write the parts of whole[n] to packed[size]; elements of 2 or 4 bytes, both contiguous and of one type."""
        self._copy(whole, packed, pack=True)

    def unpack(self, packed: Tensor, whole: Tensor) -> None:
        """Write packed[size] to the parts of whole[n]; tensors as for pack()."""
        self._copy(whole, packed, pack=False)

    def _copy(self, whole: Tensor, packed: Tensor, *, pack: bool) -> None:
        integers = _AS_INTEGERS[whole.element_size()]
        if self._starts.is_cuda:  # the table's layout may end before this stream gets here
            self._starts.record_stream(torch.cuda.current_stream(self._starts.device))
        tensors = (whole.view(integers), packed.view(integers), self._starts, self._sources)
        numbers = (self._starts.numel(), self.size)
        _copy_parts(-(-self.size // TILE), (*tensors, *numbers), (self._steps, pack), WARPS)
