"""Exclusive resources of each optimizer in a process: names of parameters, and the network route's jobs and ports."""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._net.byteps import process
from byteps_thc._net.byteps.process import Claim, Claims
from byteps_thc._net.byteps.push_pull import different_ranks
from byteps_thc.torch.settings import GradientCompression, ThcCompression

_LISTED = 3

Compressions = GradientCompression | ThcCompression


def take_place(parameters: Sequence["NamedParameter"], compression: Compressions) -> tuple[Compressions, Claim]:
    """Claim the names of the parameters, and the first free jobs and ports; return the compression with them.

    Collective. Raises ConfigurationError if a name is taken or the processes differ, and DeadlineError.
    """
    compression, claim = claim_place(process.claims, parameters, compression)
    try:
        _compare(parameters, compression)
    except BaseException:
        claim.release()
        raise
    return compression, claim


def claim_place(
    claims: Claims, parameters: Sequence["NamedParameter"], compression: Compressions
) -> tuple[Compressions, Claim]:
    """Do take_place()'s work in this process alone."""
    claim = claims.open()
    things: list[Hashable] = [parameter.name for parameter in parameters]
    _require_free(claims, things)
    if isinstance(compression, ThcCompression) and compression.route == "network":
        jobs, sockets = _first_free(claims, compression.jobs_after), _first_free(claims, compression.sockets_after)
        things += compression.jobs_after(jobs) + compression.sockets_after(sockets)
        compression = compression.moved(jobs, sockets)
    claim.add(things)
    return compression, claim


def _require_free(claims: Claims, names: Collection[Hashable]) -> None:
    if taken := claims.taken(names):
        listed = ", ".join(repr(name) for name in taken[:_LISTED])
        raise ConfigurationError(
            f"another DistributedOptimizer of this process has parameters named {listed}"
            f"{', ...' if len(taken) > _LISTED else ''}, and BytePS would mix their gradients. Names must be unique in "
            "a process: pass named_parameters=module.named_parameters(prefix='NAME'), with a prefix for each module, "
            "or call close_compression() of an optimizer that is no longer used"
        )


def _first_free(claims: Claims, things_after: Callable[[int], Collection[Hashable]]) -> int:
    """Return the smallest n for which nothing in things_after(n) is taken."""
    return next(n for n in itertools.count() if not claims.taken(things_after(n)))


def _compare(parameters: Sequence["NamedParameter"], compression: Compressions) -> None:
    """Raise ConfigurationError unless all processes make the same optimizer now: BytePS numbers tensors in order."""
    kind: tuple[object, ...] = (getattr(compression, "__name__", type(compression).__name__),)
    deadline_s = None
    if isinstance(compression, ThcCompression):
        kind = ("thc", compression.route, compression.job if compression.route == "network" else None)
        deadline_s = compression.policy.deadline_s
    tensors = sorted((p.name, p.tensor.numel(), str(p.tensor.dtype)) for p in parameters)
    if different := different_ranks((kind, tensors), deadline_s):
        raise ConfigurationError(
            f"process(es) {', '.join(map(str, different))} and this one ({process.rank()}) make different "
            "DistributedOptimizers now: other parameters (names, sizes, dtypes), compression, route or job. All "
            "processes must make the same optimizers in the same order"
        )


@dataclass(frozen=True, eq=False)
class NamedParameter:
    """A trained parameter. index: its place in the forward pass, by the order of the names."""

    name: str
    tensor: Tensor
    index: int


def name_parameters(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None
) -> list[NamedParameter]:
    """Return the parameters of the optimizer that require a gradient, in the order of `named_parameters`.

    named_parameters: such as model.named_parameters(); None: names from the order in the parameter groups. Raises
    ConfigurationError for anything else, duplicate names, and parameters without a name.
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
        raise ConfigurationError("named_parameters must be tuples (name, parameter): pass model.named_parameters()")
    if any(not isinstance(parameter, Tensor) for _, parameter in pairs):
        raise ConfigurationError("named_parameters must be tuples (name, torch.Tensor): pass model.named_parameters()")
    duplicates = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if duplicates:
        raise ConfigurationError(
            f"names in named_parameters must be unique, and these are not: {', '.join(sorted(duplicates))}"
        )
    if len({id(parameter) for _, parameter in pairs}) < len(pairs):
        raise ConfigurationError("named_parameters has a parameter under two names: pass model.named_parameters()")
    return pairs
