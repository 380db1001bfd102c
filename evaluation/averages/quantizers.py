"""Other ways to quantize a gradient, in NumPy, by their papers and specifications, for comparison with THC.

Each turns float64[coordinates], a multiple of its group, into a receiver's decoded vector. `uniform`: one number
in [0, 1) for each coordinate, for rounding or signs. bits: per coordinate, scales included.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch

from averages.averaging import hadamard

F64 = npt.NDArray[np.float64]
#: Magnitudes of the elements of FP4 (OCP Microscaling Formats 1.0, E2M1) and FP8 (E4M3), in the order of their codes.
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
E4M3 = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy()


class Quantizer(Protocol):
    """See above. unbiased: whether the mean over `uniform` is the gradient."""

    @property
    def bits(self) -> float: ...

    @property
    def unbiased(self) -> bool: ...

    def __call__(self, x: F64, uniform: F64) -> F64: ...


@dataclass(frozen=True)
class Integers:
    """Evenly spaced levels between -norm and norm of a group of coordinates.

    QSGD (Alistarh et al., NIPS 2017) with float32 norms of 512, and the usual int4, int8 and so on, in groups with
    float16 scales. Scales are rounded up, so that nothing is clipped. nearest: deterministic, so that errors of the
    same coordinate do not cancel.
    """

    code_bits: int
    group: int
    norm: Literal["max", "l2"] = "max"
    scale: type[np.floating[Any]] = np.float16
    nearest: bool = False

    @property
    def bits(self) -> float:
        return self.code_bits + np.dtype(self.scale).itemsize * 8 / self.group

    @property
    def unbiased(self) -> bool:
        return not self.nearest

    def __call__(self, x: F64, uniform: F64) -> F64:
        groups = x.reshape(-1, self.group)
        largest = (1 << (self.code_bits - 1)) - 1
        order = np.inf if self.norm == "max" else 2
        exact = np.linalg.norm(groups, ord=order, axis=1, keepdims=True) / largest
        step = exact.astype(self.scale)
        step = np.where(step < exact, np.nextafter(step, self.scale(np.inf)), step).astype(np.float64)
        levels = np.divide(groups, step, out=np.zeros_like(groups), where=step > 0)
        low = np.floor(levels)
        chance = 0.5 if self.nearest else uniform.reshape(groups.shape)
        return ((low + (chance < levels - low)) * step).reshape(-1)


@dataclass(frozen=True)
class Smoothed:
    """A quantizer behind a Hadamard rotation of small blocks, without random signs.

    With integers of 4 bits in groups of 128, it is SDP4Bit's code of gradients (Jia et al., NeurIPS 2024).
    """

    inner: Quantizer
    block: int = 32

    @property
    def bits(self) -> float:
        return self.inner.bits

    @property
    def unbiased(self) -> bool:
        return self.inner.unbiased

    def __call__(self, x: F64, uniform: F64) -> F64:
        return _rotated(self.inner(_rotated(x, self.block), uniform), self.block)


@dataclass(frozen=True)
class Microscaling:
    """MXFP4 and MXFP8 (OCP Microscaling Formats 1.0): 32 elements share a scale, a power of two of 8 bits.

    nearest: the specification's scale, which is 2^floor(log2 of the largest) over the element's largest power, rounding
    to nearest even, and too large values become the largest. Otherwise unbiased: rounding at random, with a scale that
    clips nothing.
    """

    element: Literal["e2m1", "e4m3"]
    nearest: bool = True
    group: int = 32

    @property
    def bits(self) -> float:
        return {"e2m1": 4, "e4m3": 8}[self.element] + 8 / self.group

    @property
    def unbiased(self) -> bool:
        return not self.nearest

    def __call__(self, x: F64, uniform: F64) -> F64:
        elements = E2M1 if self.element == "e2m1" else E4M3
        groups = x.reshape(-1, self.group)
        largest = np.maximum(np.abs(groups).max(axis=1, keepdims=True), 2.0**-126)
        if self.nearest:
            scale = 2.0 ** (np.floor(np.log2(largest)) - math.floor(math.log2(elements[-1])))
        else:
            scale = 2.0 ** np.ceil(np.log2(largest / elements[-1]))
        chance = None if self.nearest else uniform.reshape(groups.shape)
        return (round_to(elements, groups / scale, chance) * scale).reshape(-1)


@dataclass(frozen=True)
class Nvfp4:
    """NVFP4 (NVIDIA): 16 elements E2M1 share a scale E4M3, in units of a float32 of the tensor.

    nearest: elements and scales are rounded to nearest even. Otherwise unbiased: scales up, elements at random.
    """

    nearest: bool = False
    group: int = 16

    @property
    def bits(self) -> float:
        return 4 + 8 / self.group

    @property
    def unbiased(self) -> bool:
        return not self.nearest

    def __call__(self, x: F64, uniform: F64) -> F64:
        groups = x.reshape(-1, self.group)
        wanted = np.abs(groups).max(axis=1, keepdims=True) / E2M1[-1]
        unit = max(float(wanted.max()), 2.0**-126) / E4M3[-1]
        up = E4M3[np.minimum(np.searchsorted(E4M3, wanted / unit), len(E4M3) - 1)]
        scale = unit * (round_to(E4M3, wanted / unit) if self.nearest else up)
        elements = np.divide(groups, scale, out=np.zeros_like(groups), where=scale > 0)
        return (round_to(E2M1, elements, None if self.nearest else uniform.reshape(groups.shape)) * scale).reshape(-1)


@dataclass(frozen=True)
class MsEden:
    """MS-EDEN (Panferov et al., arXiv 2601.22813): NVFP4's nearest elements of rotated blocks.

    The scale of 16 elements has EDEN's factor, which makes the block exact along itself, and is rounded to E4M3 at
    random. Blocks have signs of their own.
    """

    block: int = 128
    group: int = 16

    @property
    def bits(self) -> float:
        return Nvfp4(group=self.group).bits

    @property
    def unbiased(self) -> bool:
        return True

    def __call__(self, x: F64, uniform: F64) -> F64:
        signs = np.where(uniform < 0.5, -1.0, 1.0)
        y = _rotated(x * signs, self.block).reshape(-1, self.block // self.group, self.group)
        scale = np.abs(y).max(axis=2, keepdims=True) / E2M1[-1]
        elements = round_to(E2M1, np.divide(y, scale, out=np.zeros_like(y), where=scale > 0))
        dots = (y * elements * scale).sum(axis=(1, 2), keepdims=True)
        energy = np.square(y).sum(axis=(1, 2), keepdims=True)
        wanted = scale * np.divide(energy, dots, out=np.zeros_like(dots), where=dots > 0)
        unit = max(float(wanted.max()), 2.0**-126) / E4M3[-1]
        chance = (2 * uniform % 1).reshape(y.shape)[:, :, :1]  # without the bit of the sign
        return _rotated((elements * round_to(E4M3, wanted / unit, chance) * unit).reshape(-1), self.block) * signs


def _rotated(x: F64, block: int) -> F64:
    rotated = hadamard(torch.from_numpy(x.reshape(-1, block)).float())
    return rotated.double().numpy().reshape(-1) / math.sqrt(block)


def round_to(elements: F64, x: F64, chance: F64 | None = None) -> F64:
    """Round to +-elements: away from zero where the fraction is above `chance`; without it to nearest, ties to even."""
    magnitude = np.minimum(np.abs(x), elements[-1])
    low = np.minimum(np.searchsorted(elements, magnitude, side="right") - 1, len(elements) - 2)
    fraction = (magnitude - elements[low]) / (elements[low + 1] - elements[low])
    if chance is None:
        chance = np.where(low % 2 == 1, np.nextafter(0.5, 0), 0.5)
    rounded: F64 = np.sign(x) * elements[low + (chance < fraction)]
    return rounded
