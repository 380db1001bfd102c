"""What the optimizers of a process do not share: names of parameters, and on the network route jobs and local ports."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Sequence

from byteps_thc._net.byteps import process
from byteps_thc._net.byteps.claims import Claim, Claims
from byteps_thc._net.byteps.comparison import different_ranks
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc.torch.compression import GradientCompression
from byteps_thc.torch.parameters import NamedParameter
from byteps_thc.torch.settings import ThcCompression

_LISTED = 3

Compressions = GradientCompression | ThcCompression


def take_place(parameters: Sequence[NamedParameter], compression: Compressions) -> tuple[Compressions, Claim]:
    """Claim the names of the parameters, and the first jobs and ports that no other optimizer of this process has.

    Called by all processes, for the same optimizers in the same order. Returns the compression with these jobs and
    ports. Raises ConfigurationError if a name is taken or the processes differ, and DeadlineError.
    """
    compression, claim = claim_place(process.claims(), parameters, compression)
    try:
        _compare(parameters, compression)
    except BaseException:
        claim.release()
        raise
    return compression, claim


def claim_place(
    claims: Claims, parameters: Sequence[NamedParameter], compression: Compressions
) -> tuple[Compressions, Claim]:
    """Do what take_place() does in this process alone."""
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
    """Return the smallest n for which nothing of things_after(n) is taken."""
    return next(n for n in itertools.count() if not claims.taken(things_after(n)))


def _compare(parameters: Sequence[NamedParameter], compression: Compressions) -> None:
    """Raise ConfigurationError unless all processes make the same optimizer now.

    BytePS numbers tensors in the order in which a worker declares them. Workers that make their optimizers in another
    order would average gradients of different parameters.
    """
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
