"""Chooses the levels in which ranks average. Engines find the ranks of a node themselves.

Averages can take two levels, exact within a node and compressed between the nodes. These need several nodes with equal
numbers of ranks, more than one. Over gloo both ways are measured then, because two levels send less and compute more:
network and processors decide. Without a choice nothing is measured.
"""

import json
import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.settings import warn_once
from byteps_thc._engine.engine import Engine, GradientBuffer, ParameterSlice
from byteps_thc._engine.factory import Scheme, flat_engine
from byteps_thc._engine.hierarchy.exchange import hierarchical_engine
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.groups import Communicators, backends, cut_group
from byteps_thc._net.handshake import Gather, gather_by_rank, require_equal, with_arithmetic
from byteps_thc._net.mesh import Levels, MeshGroups, counted, describe_levels, mesh_groups
from byteps_thc._net.run import host_of, node_identity
from byteps_thc._scheme.decoding.settings import RankCodes

_LISTED = 8  # nodes
#: Ranks that take longer for a word are far apart: both ways wait as long there, two levels send less, and measuring
#: would take many seconds.
_LONG_S = 0.03
#: Elements of the largest measured gradient, 20 ms of traffic at 1 Gb/s, and of a first one that shows whether it fits.
MOST_PARAMETERS, LEAST_PARAMETERS = 1 << 20, 1 << 16
#: Longest average, unless the smallest gradient's takes longer.
_AVERAGE_S = 0.1
#: The first round makes memory, tables and threads; the shortest of the others counts.
_ROUNDS = 3

_logger = logging.getLogger("byteps_thc")


def find_levels(
    process_group: dist.ProcessGroup,
    asked: Levels,
    scheme: Scheme,
    policy: CompressionPolicy,
) -> MeshGroups | None:
    """Return the two levels in which the ranks of a process group average, None for one; collective.

    Servers and switches average in one level, unless a mesh is given. Rank 0 logs the nodes, the choice and the
    measurements, and warns of uneven nodes. Raises ConfigurationError if ranks have different `asked`, TransportError
    or DeadlineError if ranks do not answer.
    """
    if isinstance(asked, str) and process_group.size() == 1:
        return None
    told = with_arithmetic({"levels": describe_levels(asked)})
    mine = json.dumps([told, isinstance(scheme, RankCodes), node_identity()])
    gather = Communicators(process_group, policy.deadline_s).for_questions().gather
    everyone = {rank: json.loads(text) for rank, text in gather_by_rank(gather, mine).items()}
    require_equal({rank: settings for rank, (settings, _, _) in everyone.items()})
    if not isinstance(asked, str):
        return mesh_groups(*asked, process_group)
    if not all(has_levels for _, has_levels, _ in everyone.values()):
        return None  # a difference here is an error of later comparisons
    names = [node for _, _, node in everyone.values()]
    found = group_by_node(names)
    levels, measured = None, ""
    if asked == "auto" and has_two_levels(found):
        levels = MeshGroups(*cut_group(process_group, [found, [*zip(*found, strict=True)]]))
        if "nccl" not in backends(process_group):
            exchange_s = seconds_of_exchange(gather)
            if exchange_s < _LONG_S:
                own_s = time_both_ways(process_group, levels, scheme, policy, gather)
                all_s = [json.loads(text) for text in gather(json.dumps(own_s).encode())]
                two_levels_s, flat_s = map(max, zip(*all_s, strict=True))
                levels = levels if two_levels_s <= flat_s else None
                took = f"{two_levels_s * 1e3:.1f} ms in two levels, {flat_s * 1e3:.1f} ms in one"
                measured = f' (levels="auto": an average took {took})'
            else:
                measured = f' (levels="auto": ranks take {exchange_s * 1e3:.0f} ms for a word, so the network is slow)'
    if process_group.rank() == 0:
        _logger.info("%s%s", chosen_levels(names, two=levels is not None), measured)
        if asked == "auto" and (warning := warning_of_uneven(found)):
            warn_once(warning)
    return levels


def time_both_ways(
    process_group: dist.ProcessGroup, levels: MeshGroups, scheme: Scheme, policy: CompressionPolicy, gather: Gather
) -> tuple[float, float]:
    """Return the seconds of averages on this rank in two levels and in one, over new engines; collective."""
    always = policy.model_copy(update={"warmup_steps": 0, "stop_step": None, "bypass_elements": 0, "exclude": ()})
    flat_s, two_levels_s = seconds_of_averages(
        [lambda: flat_engine(process_group, scheme, always), lambda: hierarchical_engine(levels, scheme, always)],
        lambda seconds: max(_everyones(gather, seconds)),
    )
    return two_levels_s, flat_s


def seconds_of_averages(engines: Sequence[Callable[[], Engine]], slowest: Callable[[float], float]) -> list[float]:
    """Return the seconds of each new engine for the same float32 gradient in host memory; collective.

    slowest: returns the longest time of all ranks, collective: a slow network gets a smaller gradient. Returns infinity
    for an engine that raises ConfigurationError. Raises the errors of averages.
    """
    seconds, parameters = [], 0
    for make in engines:
        try:
            engine = make()
        except ConfigurationError:  # on all ranks; the caller's own engine raises it again if no way is left
            seconds.append(math.inf)
            continue
        try:
            if not parameters:
                least_s = slowest(_least_s(engine, LEAST_PARAMETERS))
                parameters = LEAST_PARAMETERS * round(_AVERAGE_S / least_s)
                parameters = min(max(parameters, LEAST_PARAMETERS), MOST_PARAMETERS)
            seconds.append(_least_s(engine, parameters))
        finally:
            engine.close()
    return seconds


def _least_s(engine: Engine, parameters: int) -> float:
    name = f"measured {parameters}"
    gradient = torch.randn(parameters, generator=torch.Generator().manual_seed(1), device="cpu")
    buffer = GradientBuffer(name, gradient, (ParameterSlice(name, 0, parameters),))
    rounds = []
    for _ in range(_ROUNDS):
        began_s = time.perf_counter()
        engine.start_step()
        engine.all_reduce(buffer).wait()
        rounds.append(time.perf_counter() - began_s)
    return min(rounds[1:])


def seconds_of_exchange(gather: Gather) -> float:
    """Return the seconds that ranks take to exchange a word, twice the round trip; the same on all ranks, collective.

    It is the median: a late rank waits for nobody, and all others wait for it.
    """
    began_s = time.perf_counter()
    gather(b"")
    return statistics.median_low(_everyones(gather, time.perf_counter() - began_s))


def _everyones(gather: Gather, seconds: float) -> list[float]:
    return [float(theirs) for theirs in gather(repr(seconds).encode())]


def group_by_node(names: Sequence[str]) -> list[list[int]]:
    """Return the ranks of each node in ascending order, the lowest rank's node first. names[r]: node of rank r."""
    ranks_of: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        ranks_of.setdefault(name, []).append(rank)
    return [*ranks_of.values()]


def has_two_levels(nodes: Sequence[Sequence[int]]) -> bool:
    sizes = {len(ranks) for ranks in nodes}
    return len(nodes) > 1 and len(sizes) == 1 and sizes != {1}


def chosen_levels(names: Sequence[str], *, two: bool) -> str:
    """Return the log's words for the levels. names: as group_by_node's. two: two levels were chosen."""
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
    """Return the reason why these nodes, lists of ranks, cannot have two levels; None: nothing to warn of."""
    sizes = [len(ranks) for ranks in found]
    if len(set(sizes)) == 1:
        return None
    numbers = ", ".join(map(str, sizes)) if len(sizes) <= _LISTED else f"{min(sizes)} to {max(sizes)}"
    return (
        f"nodes have different numbers of ranks ({numbers}), so averages are compressed over all ranks in one "
        "level, which sends more than two levels would: start as many ranks on every node"
    )
