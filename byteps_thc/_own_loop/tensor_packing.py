"""Named tensors as gradient buffers: small ones share a buffer, large ones travel from where they are."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from byteps_thc._base.arrays import require_disjoint
from byteps_thc._base.errors import InputError
from byteps_thc._engine.agreement import Contents
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice
from byteps_thc._engine.parameters import Packed, is_averaged, real_view
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._scheme.block_plan import END_MULTIPLE, OWN_BLOCKS_COORDINATES

#: Smaller tensors are copied into buffers of up to twice that: a collective of its own would cost more than the copy.
_OWN_BUFFER_ELEMENTS = 1 << 20

#: Constant properties of a tensor: name, elements, elements of a row with a scale (0: none), dtype, device.
Signature = tuple[str, int, int, torch.dtype, torch.device]


def signature_of(tensors: Mapping[str, Tensor], policy: CompressionPolicy) -> tuple[Signature, ...]:
    """Return a signature of each tensor; InputError naming the first that cannot be averaged."""
    if not isinstance(tensors, Mapping):
        raise InputError(f"tensors are a {type(tensors).__name__}, not a mapping from names to tensors")
    signatures = []
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            hint = ": omit parameters without a gradient, on all ranks" if tensor is None else ""
            raise InputError(f"{name!r} is a {type(tensor).__name__}, not a tensor{hint}")
        if hasattr(tensor, "device_mesh"):
            raise InputError(f"{name!r} is a DTensor: pass to_local()")
        if tensor.is_nested:
            raise InputError(f"{name!r} is nested: pass its tensors")
        if tensor.layout != torch.strided:
            raise InputError(f"{name!r} is sparse: pass to_dense()")
        if tensor.is_conj():
            raise InputError(f"{name!r} is a conjugate view: pass resolve_conj()")
        can_be = is_averaged(name, tensor.dtype, tensor.numel(), policy)
        if not can_be or tensor.device.type not in ("cpu", "cuda"):
            raise InputError(
                f"{name!r} is {tensor.dtype} on {tensor.device}: pass float32, float16 or bfloat16 on a CPU or CUDA "
                f"device, or float64 or complex of fewer than {policy.bypass_elements} numbers"
            )
        tensor = real_view(tensor)
        row = policy.row_elements(name, tensor.shape)
        signatures.append((name, tensor.numel(), row, tensor.dtype, tensor.device))
    return tuple(signatures)


@dataclass
class _Bin:
    """A buffer in the making, with gaps so that rotation blocks end at tensors. tensors: their numbers in the call."""

    dtype: torch.dtype
    size: int
    tensors: list[int]
    slices: list[ParameterSlice]

    def add(self, number: int, name: str, size: int, row: int) -> None:
        start = self.size
        if self.slices and max(size, self.slices[-1].size) >= OWN_BLOCKS_COORDINATES:
            start = -(-start // END_MULTIPLE) * END_MULTIPLE
        self.tensors.append(number)
        self.slices.append(ParameterSlice(name, start, start + size, row))
        self.size = start + size

    @property
    def key(self) -> str:
        # Not the device: random keys come from this, and must be the same on all ranks.
        identity = [(part.name, part.size) for part in self.slices], str(self.dtype)
        return hashlib.sha256(repr(identity).encode()).hexdigest()[:16]


class Packing:
    """The buffers of all calls with one signature. policy: tensors that it excludes share no buffer with others."""

    def __init__(self, signature: tuple[Signature, ...], policy: CompressionPolicy) -> None:
        self.signature = signature
        self.names = frozenset(name for name, *_ in signature)
        devices = list(dict.fromkeys(device for *_, device in signature))
        lines = (
            f"{name!r} ({size} elements, "
            + f"rows of {row}, " * bool(row)
            + f"{dtype}"
            + f", device {devices.index(device)}" * (len(devices) > 1)
            + ")"
            for name, size, row, dtype, device in signature
        )
        self.contents = Contents("a call of all_reduce()", tuple(lines))
        bins = _bins(signature, policy)
        #: key, numbers of the tensors in the call, and memory of each buffer
        self._buffers = [(each.key, each.tensors, Packed(each.slices, each.size)) for each in bins]
        #: done once nobody works on the buffers; None: they were not used yet
        self.used_until: Future[Any] | None = None
        self.cuda_devices = [device for device in devices if device.type == "cuda"]

    def wait_for_memory(self) -> None:
        """Make the current streams wait for the last call: on a device it may be under way when its work is done."""
        if self.used_until is not None:
            self.used_until.wait()

    @torch.no_grad()
    def pack(self, tensors: Sequence[Tensor]) -> list[GradientBuffer]:
        """Return the buffers; a single contiguous tensor's buffer shares its memory, others are copies."""
        return [
            GradientBuffer(key, packed.pack([tensors[number] for number in numbers]), packed.slices)
            for key, numbers, packed in self._buffers
        ]

    @torch.no_grad()
    def unpack(self, buffers: Sequence[GradientBuffer], tensors: Sequence[Tensor]) -> None:
        """Copy the copied buffers back."""
        for (_, numbers, packed), buffer in zip(self._buffers, buffers, strict=True):
            packed.unpack(buffer.gradient, [tensors[number] for number in numbers])


def require_memory_of_its_own(tensors: Mapping[str, Tensor]) -> None:
    """Raise InputError for tensors in which elements share memory, or that share memory with others."""
    for name, tensor in tensors.items():
        if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            raise InputError(f"elements of {name!r} share memory (expand()): pass {name}.contiguous()")
    filled = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
    # Tensors with gaps may lie within each other; their first addresses tell them apart.
    require_disjoint(
        (name, tensor.data_ptr(), tensor.nbytes if tensor.is_contiguous() else tensor.element_size())
        for name, tensor in filled.items()
    )


def _bins(signature: tuple[Signature, ...], policy: CompressionPolicy) -> list[_Bin]:
    """Distribute the tensors; in an order that depends on the signature only. Empty tensors are in none."""
    bins: list[_Bin] = []
    shared: dict[tuple[torch.dtype, torch.device, bool], _Bin] = {}
    for number, (name, size, row, dtype, device) in enumerate(signature):
        if size == 0:
            continue
        if size >= _OWN_BUFFER_ELEMENTS:
            bins.append(_Bin(dtype, 0, [], []))
            bins[-1].add(number, name, size, row)
            continue
        kind = dtype, device, policy.excludes(name, row)
        target = shared.get(kind)
        if target is None or target.size >= _OWN_BUFFER_ELEMENTS:
            target = shared[kind] = _Bin(dtype, 0, [], [])
            bins.append(target)
        target.add(number, name, size, row)
    return bins
