"""Parameters that are unlike others: weights of embeddings, and large ones that are excluded from compression."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from torch import Tensor, nn

from byteps_thc._engine.buffers import GradientBuffer, ParameterSlice
from byteps_thc._engine.policy import CompressionPolicy

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def embedding_weights(modules: Iterable[nn.Module]) -> Iterator[Tensor]:
    """Give the weights of those of the modules that are embeddings; a tied weight is one of them."""
    for module in modules:
        if isinstance(module, _EMBEDDINGS):
            yield module.weight


def is_embedding_weight(module: nn.Module, name: str) -> bool:
    """Return whether the module's parameter of that name is the weight of an embedding."""
    return isinstance(module, _EMBEDDINGS) and name == "weight"


def weights_of_all_embeddings() -> set[int]:
    """Return the id() of the weight of every embedding in this process.

    An optimizer is given parameters without their modules, so all objects are searched: some 50 ms, once.
    """
    # By type: isinstance() may run code of proxies.
    modules = [item for item in gc.get_objects() if issubclass(type(item), _EMBEDDINGS)]
    return {id(weight) for weight in embedding_weights(modules)}


#: Of such a parameter, at least: a collective of its own costs more than the codes of a smaller one.
_OWN_BUFFER_ELEMENTS = 1 << 14


def apart(buffer: GradientBuffer, policy: CompressionPolicy) -> list[GradientBuffer]:
    """Return the parts of a buffer, one after another, in which large excluded parameters are by themselves.

    Beside compressed ones each of their elements costs an index of 8 bytes, and the code of the zero in its place.
    Without any such parameter, that is the buffer.
    """

    def alone(part: ParameterSlice) -> bool:
        return part.size >= _OWN_BUFFER_ELEMENTS and policy.excludes(part.name)

    runs = [list(run) for _, run in itertools.groupby(buffer.parameters, alone)]
    if len(runs) < 2:
        return [buffer]
    cuts = [0, *(run[0].start for run in runs[1:]), buffer.gradient.numel()]
    return [
        GradientBuffer(
            f"{buffer.key}, elements {start} to {stop}",
            buffer.gradient[start:stop],
            tuple(replace(part, start=part.start - start, stop=part.stop - start) for part in run),
        )
        for run, (start, stop) in zip(runs, itertools.pairwise(cuts), strict=True)
    ]
