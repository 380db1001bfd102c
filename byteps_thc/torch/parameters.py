"""The parameters of an optimizer by name, in the order of the forward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from byteps_thc._scheme.errors import ConfigurationError


@dataclass(frozen=True, eq=False)
class NamedParameter:
    """A trained parameter. index: its place in the forward pass, as far as the order of the names tells."""

    name: str
    tensor: Tensor
    index: int


def name_parameters(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None
) -> list[NamedParameter]:
    """Return the parameters of the optimizer that require a gradient, in the order of `named_parameters`.

    named_parameters: as from model.named_parameters(), None for names made from the order in the parameter groups.
    Raises ConfigurationError for anything that is no such sequence, duplicate names, and parameters without a name.
    """
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if named_parameters is None:
        pairs: list[tuple[str, Tensor]] = [(f"push_pull.noname.{i}", p) for i, p in enumerate(trained)]
    else:
        pairs = _checked_pairs(list(named_parameters))
    names = {id(parameter): name for name, parameter in pairs}
    unnamed = [f"{list(p.shape)} in order {i}" for i, p in enumerate(trained) if id(p) not in names]
    if unnamed:
        raise ConfigurationError(
            f"named_parameters lacks {len(unnamed)} parameters of the optimizer (shape {', '.join(unnamed[:3])} ...): "
            "pass model.named_parameters() of the whole model"
        )
    used = {id(p) for p in trained}
    return [NamedParameter(names[id(p)], p, i) for i, p in enumerate(p for _, p in pairs if id(p) in used)]


def _checked_pairs(pairs: list[Any]) -> list[tuple[str, Tensor]]:
    if any(not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str) for pair in pairs):
        raise ConfigurationError(
            "named_parameters should be a sequence of tuples (name, parameter), usually model.named_parameters()"
        )
    if any(not isinstance(parameter, Tensor) for _, parameter in pairs):
        raise ConfigurationError("named_parameters should be a sequence of tuples (name, torch.Tensor)")
    duplicates = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if duplicates:
        raise ConfigurationError(
            f"names in named_parameters must be unique; found duplicates: {', '.join(sorted(duplicates))}"
        )
    if len({id(parameter) for _, parameter in pairs}) < len(pairs):
        raise ConfigurationError("named_parameters has a parameter under two names; model.named_parameters() does not")
    return pairs
