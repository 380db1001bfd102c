"""Which ranks of a process group share a node: found when an engine is made, so that nobody has to say it.

Averages can take two levels, exact within a node and compressed between the nodes, if nodes have equal numbers of
ranks, more than one each, and there is more than one node. Over gloo both ways are measured then, because two levels
send less and compute more: which one is faster depends on network and processors. Without a choice nothing is measured.
"""

from __future__ import annotations

import json
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch.distributed as dist

from byteps_thc._net.groups import Communicators, backends, cut_group
from byteps_thc._net.handshake import Gather, gather_by_rank, require_equal, with_arithmetic
from byteps_thc._net.host import host_of, node_identity
from byteps_thc._net.mesh import MeshGroups, counted
from byteps_thc._scheme.config import ThcConfig
from byteps_thc._scheme.settings import warn_once

_LISTED = 8  # nodes
#: Ranks that take longer for a word are far from each other: both ways wait as long there, and two levels send less.
#: To make engines and measure would take many seconds.
_LONG_S = 0.03

_logger = logging.getLogger("byteps_thc")


@dataclass(frozen=True)
class WayTimes:
    """Seconds that an average takes in two levels, and in one."""

    two_levels_s: float
    flat_s: float

    @property
    def takes_two(self) -> bool:
        """Whether two levels are as fast."""
        return self.two_levels_s <= self.flat_s

    def agreed(self, gather: Gather) -> WayTimes:
        """Return the times of the slowest rank, the same on all ranks; collective."""
        everyone = [json.loads(text) for text in gather(json.dumps([self.two_levels_s, self.flat_s]).encode())]
        two_levels_s, flat_s = (max(times) for times in zip(*everyone, strict=True))
        return WayTimes(two_levels_s, flat_s)

    def __str__(self) -> str:
        """Both numbers, for the log."""
        return f"an average took {self.two_levels_s * 1e3:.1f} ms in two levels, {self.flat_s * 1e3:.1f} ms in one"


#: Returns the longest of all ranks' times; collective.
Slowest = Callable[[float], float]
#: Measures both ways on this rank; collective.
Measure = Callable[[MeshGroups, Slowest], WayTimes]


def find_nodes(
    process_group: dist.ProcessGroup,
    asked: Literal["auto", "flat"],
    config: ThcConfig | None,
    deadline_s: float,
    measure: Measure,
) -> MeshGroups | None:
    """Return the two levels in which the ranks of a process group average, None for one; collective over them.

    config: what compresses; None: something that has one level only. measure: called if there is a choice. Rank 0 logs
    which nodes there are, what was chosen and what was measured, and warns of uneven nodes. Raises
    ConfigurationError if ranks have different `asked`, TransportError or DeadlineError if ranks do not answer.
    """
    ranks = process_group.size()
    if ranks == 1:
        return None
    mine = json.dumps([with_arithmetic({"levels": asked}), config is not None, node_identity()])
    gather = Communicators(process_group, deadline_s).for_questions().gather
    texts = gather_by_rank(gather, mine)
    everyone = {rank: json.loads(text) for rank, text in texts.items()}
    require_equal({rank: settings for rank, (settings, _, _) in everyone.items()})
    if config is None or not all(has_levels for _, has_levels, _ in everyone.values()):
        return None  # where they differ, so do settings that will be compared
    names = [node for _, _, node in everyone.values()]
    found = group_by_node(names)
    levels, times, exchange_s = None, None, 0.0
    if asked == "auto" and has_two_levels(found):
        levels = MeshGroups(*cut_group(process_group, [found, [*zip(*found, strict=True)]]))
        if "nccl" not in backends(process_group):
            exchange_s = seconds_of_exchange(gather)
            if exchange_s < _LONG_S:
                times = measure(levels, lambda seconds: max(_everyones(gather, seconds))).agreed(gather)
                levels = levels if times.takes_two else None
    if process_group.rank() == 0:
        measured = "" if times is None else f' (levels="auto": {times})'
        if exchange_s >= _LONG_S:
            measured = f' (levels="auto": ranks take {exchange_s * 1e3:.0f} ms for a word, so the network is slow)'
        _logger.info("%s%s", chosen_levels(names, two=levels is not None), measured)
        if asked == "auto" and (warning := warning_of_uneven(found)):
            warn_once(warning)
    return levels


def seconds_of_exchange(gather: Gather) -> float:
    """Return how long ranks take to exchange a word, twice the round trip between them; the same on all ranks.

    The median, as a rank that comes late waits for nobody, and all others wait for it. Collective.
    """
    began_s = time.perf_counter()
    gather(b"")
    return statistics.median_low(_everyones(gather, time.perf_counter() - began_s))


def _everyones(gather: Gather, seconds: float) -> list[float]:
    return [float(theirs) for theirs in gather(repr(seconds).encode())]


def group_by_node(names: Sequence[str]) -> list[list[int]]:
    """Return the ranks of each node in ascending order, the node of the lowest rank first.

    names[r]: of the node of rank r.
    """
    ranks_of: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        ranks_of.setdefault(name, []).append(rank)
    return [*ranks_of.values()]


def has_two_levels(nodes: Sequence[Sequence[int]]) -> bool:
    """Whether these nodes, of such ranks, allow for two levels."""
    sizes = {len(ranks) for ranks in nodes}
    return len(nodes) > 1 and len(sizes) == 1 and sizes != {1}


def chosen_levels(names: Sequence[str], *, two: bool) -> str:
    """Return in which levels ranks average, in words. names: as group_by_node's. two: there are two."""
    nodes = group_by_node(names)
    if two:
        return f"averages are exact within each of {len(nodes)} nodes of {len(nodes[0])} ranks, compressed between them"
    hosts = {host_of(name) for name in names}
    one = f"averages are compressed over {len(names)} ranks on {counted(len(nodes), 'node')}, in one level"
    if len(hosts) == len(nodes) or len(nodes) < len(names):
        return one
    return (
        f"{one}; they are on {counted(len(hosts), 'host')}, where containers have networks of their own: start all "
        "ranks of a host in one, or let them share a network (--net=host), or give a mesh"
    )


def warning_of_uneven(found: Sequence[Sequence[int]]) -> str | None:
    """Return what keeps these nodes, of such ranks, from two levels, in words; None: nothing that need be said."""
    sizes = [len(ranks) for ranks in found]
    if len(set(sizes)) == 1:
        return None
    return (
        f"nodes have different numbers of ranks ({_numbers(sizes)}), so averages are compressed over all ranks in one "
        "level, which sends more than two levels would: start as many ranks on every node"
    )


def _numbers(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes)) if len(sizes) <= _LISTED else f"{min(sizes)} to {max(sizes)}"
