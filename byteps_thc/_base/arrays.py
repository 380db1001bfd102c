"""Arrays for the kernels; gradients are flat NumPy views, not copied."""

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from byteps_thc._base.errors import InputError

if TYPE_CHECKING:
    import torch

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U64 = npt.NDArray[np.uint64]
#: float32, float16, or uint16 holding bfloat16 bits
Gradient = npt.NDArray[np.float32] | npt.NDArray[np.float16] | npt.NDArray[np.uint16]

#: coordinates that are converted to float32 together
_CHUNK = 1 << 15

#: Allocates a flat array of zeros of a dtype in some kind of host memory; np.zeros is one.
HostZeros = Callable[[int, npt.DTypeLike], npt.NDArray[Any]]


def value_dtype(value_bits: int) -> np.dtype[Any]:
    return np.dtype(np.uint8 if value_bits == 8 else np.uint16)


def everybody(workers: int) -> U8 | U16:
    """Return the contributions of one chunk with all workers: uint8[1], or uint16[1] for more than 255."""
    return np.array([workers], np.uint8) if workers < 1 << 8 else np.array([workers], np.uint16)


def indexed_device(device: "torch.device") -> "torch.device":
    """Return a device with its index, as in its tensors: "cuda" is the current GPU, such as "cuda:0"."""
    import torch

    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def residual_of_tensor(tensor: "torch.Tensor") -> F32:
    """Return a tensor as a residual in host memory, without a copy if it is a host tensor."""
    array: F32 = tensor.detach().cpu().numpy()
    return array


def gradient_view(source: Any, *, bfloat16: bool = False, name: str = "gradient") -> Gradient:
    """Return `source` as a flat array that shares its memory.

    source: C-contiguous NumPy array of float32 or float16, or of uint16 with bfloat16 bits if `bfloat16`; or a
    contiguous torch CPU tensor of float32, float16 or bfloat16. Raises InputError for anything else.
    """
    if not isinstance(source, np.ndarray):
        source, bfloat16 = _from_torch(source, name)
    accepted: tuple[type, ...] = (np.uint16,) if bfloat16 else (np.float32, np.float16)
    if source.dtype not in [np.dtype(kind) for kind in accepted]:
        wanted = "uint16 (bfloat16 bits)" if bfloat16 else "float32 or float16: pass "
        if not bfloat16:
            wanted += "bfloat16=True" if source.dtype == np.uint16 else ".astype(numpy.float32)"
        raise InputError(f"{name} is {source.dtype}, not {wanted}")
    if not source.flags.c_contiguous:
        raise InputError(f"{name} is not C-contiguous: pass numpy.ascontiguousarray(gradient)")
    flat: Gradient = source.reshape(-1)
    return flat


def require_tensor(name: str, tensor: "torch.Tensor", dtypes: Sequence["torch.dtype"], size: int | None = None) -> None:
    """Raise InputError unless it is contiguous, of one of the dtypes and, unless size is None, of `size` elements."""
    if tensor.dtype not in dtypes or (size is not None and tensor.numel() != size) or not tensor.is_contiguous():
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        count = "..." if size is None else size
        given = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        layout = "" if tensor.is_contiguous() else ", which is not contiguous"
        raise InputError(f"{name} must be contiguous {wanted}[{count}], not {given}{layout}")


def require_disjoint(ranges: Iterable[tuple[str, int, int]]) -> None:
    """Raise InputError if arrays of different names overlap. ranges: name, address and bytes (not 0) of every array."""
    last_name, last_stop = "", 0
    for start, size_bytes, name in sorted((start, size_bytes, name) for name, start, size_bytes in ranges):
        if start < last_stop and name != last_name:
            raise InputError(f"{last_name!r} and {name!r} share memory: pass it under one name, or copies")
        if start + size_bytes > last_stop:
            last_name, last_stop = name, start + size_bytes


def _from_torch(tensor: Any, name: str) -> tuple[npt.NDArray[Any], bool]:
    torch = sys.modules.get("torch")  # not imported here: a caller with a tensor has imported torch
    if torch is None or not isinstance(tensor, torch.Tensor):
        raise InputError(f"{name} is a {type(tensor).__name__}, not a NumPy array or torch tensor")
    if tensor.device.type != "cpu":
        raise InputError(f"{name} is on {tensor.device}: copy it to the CPU first")
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise InputError(f"{name} is not contiguous: pass gradient.contiguous()")
    tensor = tensor.detach()
    bfloat16 = tensor.dtype == torch.bfloat16
    if not (bfloat16 or tensor.dtype in (torch.float32, torch.float16)):
        raise InputError(f"{name} is {tensor.dtype}, not float32, float16 or bfloat16: pass .float()")
    return (tensor.view(torch.uint16) if bfloat16 else tensor).numpy(), bfloat16


def energy_of(array: npt.NDArray[Any]) -> float:
    """Return the sum of float32 squares, even beyond float32's range: norms near 1e38 are finite."""
    with np.errstate(over="ignore"):
        energy = float(np.dot(array, array))
    if math.isfinite(energy):
        return energy
    chunks = (array[start : start + _CHUNK].astype(np.float64) for start in range(0, len(array), _CHUNK))
    return sum(float(np.dot(chunk, chunk)) for chunk in chunks)
