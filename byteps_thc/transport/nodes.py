"""Which ranks of a process group share a node: found when an engine is made, so that nobody has to say it.

Averages take two levels, exact within a node and compressed between the nodes, where that is possible: nodes have equal
numbers of ranks, more than one each, and there is more than one node. Where it is not, they take one, over all ranks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

import torch.distributed as dist

from byteps_thc.config import ThcConfig
from byteps_thc.errors import ConfigurationError
from byteps_thc.transport.groups import Communicators, backends, cut_group
from byteps_thc.transport.handshake import gather_by_rank, require_equal, with_arithmetic
from byteps_thc.transport.host import host_of, node_identity
from byteps_thc.transport.link_bytes import link_bytes
from byteps_thc.transport.mesh import MeshGroups, counted
from byteps_thc.transport.transport import Collective
from byteps_thc.transport.warn_once import warn_once

#: auto: two levels where nodes allow it. flat: one level, over all ranks.
Nodes = Literal["auto", "flat"]

_LISTED = 8  # nodes

_logger = logging.getLogger("byteps_thc")


def require_nodes(nodes: object, *, mesh_is_given: bool = False) -> None:
    """Raise ConfigurationError unless `nodes` is one of Nodes, and "auto" beside a mesh, which says where nodes are."""
    if nodes not in ("auto", "flat"):
        raise ConfigurationError(
            f'nodes is {nodes!r}: give "auto" or "flat", or leave it out and give a 2-D DeviceMesh and the name of its '
            "slow dimension (dim=...)"
        )
    if mesh_is_given and nodes != "auto":
        raise ConfigurationError(f"nodes={nodes!r} and a mesh contradict each other: leave one of them out")


def find_nodes(
    process_group: dist.ProcessGroup,
    nodes: Nodes,
    config: ThcConfig | None,
    collective: Collective,
    deadline_s: float,
) -> MeshGroups | None:
    """Return the two levels in which the ranks of a process group average, None for one; collective over them.

    config: what compresses; None: something that has one level only. Rank 0 logs which nodes there are and what was
    chosen, and warns where one level is dear. ConfigurationError when ranks have different `nodes`, TransportError or
    DeadlineError when ranks do not answer.
    """
    ranks = process_group.size()
    if ranks == 1:
        return None
    mine = json.dumps([with_arithmetic({"nodes": nodes}), config is not None, node_identity()])
    texts = gather_by_rank(Communicators(process_group, deadline_s).for_questions().gather, mine)
    everyone = {rank: json.loads(text) for rank, text in texts.items()}
    require_equal({rank: settings for rank, (settings, _, _) in everyone.items()})
    if config is None or not all(has_levels for _, has_levels, _ in everyone.values()):
        return None  # where they differ, so do settings that will be compared
    names = [node for _, _, node in everyone.values()]
    found = group_by_node(names)
    takes_two = nodes == "auto" and has_two_levels(found)
    if process_group.rank() == 0:
        _logger.info("%s", chosen_levels(names, two=takes_two))
        ring = "nccl" in backends(process_group)
        if not takes_two and (warning := cost_of_one_level(nodes, found, config, collective, ring=ring)):
            warn_once(warning)
    if not takes_two:
        return None
    fast, slow = cut_group(process_group, [found, [*zip(*found, strict=True)]])
    return MeshGroups(fast, slow)


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


def cost_of_one_level(
    asked: Nodes, found: Sequence[Sequence[int]], config: ThcConfig, collective: Collective, *, ring: bool
) -> str | None:
    """Return what one level costs these nodes, of such ranks, in words; None: that need not be said.

    asked: what the user wants. Other arguments: see link_bytes.
    """
    sizes = [len(ranks) for ranks in found]
    if len(sizes) == 1 or max(sizes) == 1:
        return None
    with suppress(ConfigurationError):  # which all ranks will get where the settings are compared
        sent = link_bytes(sizes, config, collective, ring=ring)
        uneven = len(set(sizes)) > 1
        if asked == "flat" and sent.flat <= sent.bf16:
            return None  # whoever asks for it need not be told
        why = f"nodes have different numbers of ranks ({_numbers(sizes)}), so averages" if uneven else "averages"
        advice = "start as many ranks on every node" if uneven else 'leave nodes="flat" out'
        return (
            f"{why} are compressed over all ranks in one level: {sent.flat:.1f} bytes a parameter leave a node, where "
            f"it would be {sent.two_levels:.1f} with two levels, and is {sent.bf16:.1f} with bf16: {advice}"
        )
    return None


def _numbers(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes)) if len(sizes) <= _LISTED else f"{min(sizes)} to {max(sizes)}"
