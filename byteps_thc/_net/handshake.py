"""Compares values of all ranks: settings once per engine, a number as often as needed, and texts."""

import itertools
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.limits import LARGEST_WORD
from byteps_thc._net.communicator import Asking
from byteps_thc._net.run import host_identity
from byteps_thc._scheme.arithmetic import arithmetic_version, version_name

#: Returns the texts of all ranks of a group, collectively; raises TransportError or DeadlineError.
Gather = Callable[[bytes], list[bytes]]

#: Most ranks that an error lists.
_NAMED_RANKS = 8
#: The settings of every rank that its user does not choose.
_ARITHMETIC, _ENGINE = "arithmetic", "engine"
#: Decodes any bytes to a text for JSON.
_ANY_BYTES = "latin-1"


@dataclass(frozen=True)
class Introductions:
    """First messages of a group's ranks to each other. run: a random text of rank 0's."""

    ranks_on_this_host: int
    run: str


def introduce(gather: Gather, settings: Mapping[str, object]) -> Introductions:
    """Exchange the ranks' first messages, in one exchange.

    settings: plain values. Raises ConfigurationError on all ranks if a setting differs, naming it and each rank's
    value; TransportError or DeadlineError if other ranks do not answer.
    """
    own = host_identity().decode()
    told = [with_arithmetic(settings), own, secrets.token_hex(8)]
    everyone = {rank: json.loads(text) for rank, text in gather_by_rank(gather, json.dumps(told)).items()}
    require_equal({rank: theirs for rank, (theirs, _, _) in everyone.items()})
    hosts = [host for _, host, _ in everyone.values()]
    return Introductions(hosts.count(own), next(iter(everyone.values()))[2])


def with_arithmetic(settings: Mapping[str, object]) -> dict[str, object]:
    return {_ARITHMETIC: version_name(arithmetic_version()), **settings}


def require_equal(everyone: Mapping[int, Mapping[str, object]]) -> None:
    """Raise ConfigurationError unless all ranks have the same settings; everyone[r]: of rank r of the world."""
    versions = {rank: str(theirs.get(_ARITHMETIC, "unknown")) for rank, theirs in everyone.items()}
    if len({*versions.values()}) > 1:  # first: other differences may follow
        raise ConfigurationError(
            f"ranks have different versions of byteps_thc's arithmetic: {_who(versions)}. Install the same version of "
            "byteps_thc on the hosts of all ranks"
        )
    differences = []
    names = {name for theirs in everyone.values() for name in theirs}
    for name in sorted(names, key=lambda name: (name != _ENGINE, name)):
        values = {rank: theirs.get(name) for rank, theirs in everyone.items()}
        first = next(iter(values.values()))
        if any(value != first for value in values.values()):
            differences.append(f"{name} is {_who({rank: repr(value) for rank, value in values.items()})}")
            if name == _ENGINE:  # engines have other settings
                differences[0] += ": call the same function with the same arguments on all ranks"
                break
    if differences:
        raise ConfigurationError("ranks have different settings: " + "; ".join(differences))


def first_difference(texts: Mapping[int, str]) -> tuple[int, str]:
    """Return the number, from 0, of the first line that differs between ranks, and each rank's. texts[r]: of rank r."""
    everyone = [text.split("\n") if text else [] for text in texts.values()]
    for number, lines in enumerate(itertools.zip_longest(*everyone, fillvalue="none")):
        if len(set(lines)) > 1:
            return number, _who(dict(zip(texts, lines, strict=True)))
    raise ValueError("all ranks have the same lines")


def _who(values: Mapping[int, str]) -> str:
    if len(values) <= _NAMED_RANKS:
        return ", ".join(f"{value} on rank {rank}" for rank, value in sorted(values.items()))
    ranks_of: dict[str, list[int]] = {}
    for rank, value in sorted(values.items()):
        ranks_of.setdefault(value, []).append(rank)
    return ", ".join(f"{value} on {_named(ranks)}" for value, ranks in ranks_of.items())


def _named(ranks: Sequence[int]) -> str:
    first = ", ".join(map(str, ranks[:_NAMED_RANKS]))
    more = f" and {len(ranks) - _NAMED_RANKS} more" if len(ranks) > _NAMED_RANKS else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {first}{more}"


def all_have_same(communicators: Iterable[Asking], fingerprint: int) -> bool:
    """Return, on all ranks, whether all pass the same number of 62 bits. It takes 16 bytes to each rank.

    communicators: one of all ranks, or one within a node, then one between the nodes. Raises TransportError or
    DeadlineError if other ranks do not answer.
    """
    halves = torch.tensor([fingerprint >> 31, fingerprint & LARGEST_WORD], dtype=torch.int32, device="cpu")
    largest = torch.cat([halves, -halves])  # the largest -x is the smallest x
    for communicator in communicators:
        communicator.max_(largest).wait()
    return torch.equal(largest[:2], -largest[2:])


def gather_by_rank(gather: Gather, text: str, rank: int | None = None) -> dict[int, str]:
    """Return the texts of a group's ranks by their numbers in the world, as users know them.

    rank: this rank's number; default: torch.distributed's.
    """
    own = dist.get_rank() if rank is None else rank
    parts = (each.decode().partition(" ") for each in gather(f"{own} {text}".encode()))
    return {int(number): theirs for number, _, theirs in parts}


def gather_in_levels(fast: Gather, slow: Gather) -> Gather:
    """Return a gather over all nodes, node by node. fast: within a node; slow: between nodes."""

    def gather(text: bytes) -> list[bytes]:
        node = json.dumps([theirs.decode(_ANY_BYTES) for theirs in fast(text)]).encode()
        return [theirs.encode(_ANY_BYTES) for texts in slow(node) for theirs in json.loads(texts)]

    return gather


def gather_over(communicator: Asking, ranks: int) -> Gather:
    """Return a gather over a communicator, in two collectives; texts lose trailing spaces."""

    def gather(text: bytes) -> list[bytes]:
        longest = torch.tensor([len(text)], dtype=torch.int32, device="cpu")
        communicator.max_(longest).wait()
        size = int(longest[0])
        mine = torch.frombuffer(bytearray(text.ljust(size)), dtype=torch.uint8)
        everyone = torch.zeros(ranks * size, dtype=torch.uint8, device="cpu")
        communicator.all_gather(everyone, mine).wait()
        return [bytes(part.tolist()).rstrip() for part in everyone.view(ranks, size)]

    return gather
