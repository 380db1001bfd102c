"""Which parameters are the weights of embeddings: batches leave most of their rows without a gradient."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator

from torch import Tensor, nn

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
