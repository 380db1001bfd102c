"""Parameters and their gradients: dtypes, embeddings, and several in one flat buffer."""

import gc
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice
from byteps_thc._engine.policy import CompressionPolicy

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def embedding_weights(modules: Iterable[nn.Module]) -> Iterator[Tensor]:
    """Yield the weights of the embeddings among the modules, tied weights included."""
    for module in modules:
        if isinstance(module, _EMBEDDINGS):
            yield module.weight


def is_embedding_weight(module: nn.Module, name: str) -> bool:
    return isinstance(module, _EMBEDDINGS) and name == "weight"


def weights_of_all_embeddings() -> set[int]:
    """Return the id() of the weight of every embedding in this process.

    An optimizer gets parameters without their modules, so this searches all objects: some 50 ms, once.
    """
    # By type: isinstance() may run a proxy's code.
    modules = [item for item in gc.get_objects() if issubclass(type(item), _EMBEDDINGS)]
    return {id(weight) for weight in embedding_weights(modules)}


#: Smallest excluded parameter with a buffer of its own: for smaller ones a collective costs more than their codes.
_OWN_BUFFER_ELEMENTS = 1 << 14


def apart(buffer: GradientBuffer, policy: CompressionPolicy) -> list[GradientBuffer]:
    """Return the parts of a buffer, in order, with large excluded parameters by themselves.

    Beside compressed parameters, each of their elements costs an index of 8 bytes and the code of a zero. Without such
    parameters, the only part is the buffer.
    """

    def alone(part: ParameterSlice) -> bool:
        return part.size >= _OWN_BUFFER_ELEMENTS and policy.excludes(part.name, part.row)

    runs = [list(run) for _, run in itertools.groupby(buffer.parameters, alone)]
    if len(runs) < 2:
        return [buffer]
    cuts = [0, *(run[0].start for run in runs[1:]), buffer.gradient.numel()]
    return [
        replace(
            buffer,
            key=f"{buffer.key}, elements {start} to {stop}",
            gradient=buffer.gradient[start:stop],
            parameters=tuple(replace(part, start=part.start - start, stop=part.stop - start) for part in run),
        )
        for run, (start, stop) in zip(runs, itertools.pairwise(cuts), strict=True)
    ]


class Packed:
    """Tensors of one type and device in one flat buffer: a single contiguous tensor's own memory, else a copy."""

    def __init__(self, slices: Sequence[ParameterSlice], size: int) -> None:
        self.slices, self._size = tuple(slices), size
        self._memory: Tensor | None = None

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        first = tensors[0]
        if len(tensors) == 1 and first.is_contiguous():
            return first.view(-1)
        if self._memory is None:
            self._memory = torch.empty(self._size, dtype=first.dtype, device=first.device)
        for tensor, part in zip(tensors, self.slices, strict=True):
            self._memory[part.start : part.stop].view(tensor.shape).copy_(tensor)
        return self._memory

    def unpack(self, flat: Tensor, tensors: Sequence[Tensor]) -> None:
        if flat is self._memory:
            for tensor, part in zip(tensors, self.slices, strict=True):
                tensor.copy_(flat[part.start : part.stop].view(tensor.shape))


#: Dtypes that can be compressed.
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_EXACT_DTYPES = (torch.float64, torch.complex64, torch.complex128)


def real_view(tensor: Tensor) -> Tensor:
    """Return real and imaginary parts of a complex tensor in a last dimension of 2, the same memory."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def real_parts(buffer: GradientBuffer) -> GradientBuffer:
    """Return a buffer of real numbers, the same memory: a complex parameter has two for each element."""
    if not buffer.gradient.is_complex():
        return buffer
    parts = (ParameterSlice(part.name, 2 * part.start, 2 * part.stop) for part in buffer.parameters)
    return replace(buffer, gradient=real_view(buffer.gradient).view(-1), parameters=tuple(parts))


def saturated(average: Tensor, dtype: torch.dtype) -> Tensor:
    """Return averages in another type, as kernels write them: finite values stay finite.

    The average of float16 gradients is in the range of float16; only the error of codes can exceed it.
    """
    if dtype == torch.float16 and average.dtype != dtype:
        largest, average = torch.finfo(dtype).max, average.float()  # bfloat16 cannot represent it
        average = torch.where(average.isinf(), average, average.clamp(-largest, largest))
    return average.to(dtype)


def is_averaged(name: str, dtype: torch.dtype, elements: int, policy: CompressionPolicy) -> bool:
    """Whether the parameter can be averaged: float64 and complex, too, if it travels exactly."""
    numbers = 2 * elements if dtype.is_complex else elements
    return dtype in DTYPES or (dtype in _EXACT_DTYPES and policy.travels_exactly(name, numbers))


def require_dtypes(parameters: Iterable[tuple[str, torch.dtype, int]], policy: CompressionPolicy) -> None:
    """Raise ConfigurationError that names parameters (name, type of the gradient, elements) of unsupported types."""
    wrong = [
        f"{name} is {dtype} ({elements} elements)".replace("torch.", "")
        for name, dtype, elements in parameters
        if not is_averaged(name, dtype, elements, policy)
    ]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise ConfigurationError(
            f"{', '.join(wrong[:5])}{more}: gradients are averaged in float32, float16 or bfloat16, convert it with "
            f".float(). float64 and complex travel exactly where a parameter has fewer than {policy.bypass_elements} "
            "numbers (CompressionPolicy.bypass_elements) or is named in CompressionPolicy.exclude"
        )
