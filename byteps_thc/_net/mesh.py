"""Ranks in two levels: a fast one, such as the GPUs of a node, and a slow one, between the nodes."""

import itertools
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from typing_extensions import override

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.settings import describe
from byteps_thc._net.groups import GroupPart, choose_process_group, cut_group, group_of, world_ranks
from byteps_thc._net.handshake import gather_in_levels
from byteps_thc._net.replicas import RankReplicas, Replicas

#: auto: two levels if they are faster. flat: one. Or a 2-D mesh, with the name of its dimension between the nodes.
Levels = Literal["auto", "flat"] | tuple[DeviceMesh, str]
_LISTED_NODES = 16


@dataclass(frozen=True)
class MeshGroups:
    """Two process groups. fast: exact, on a node. slow: compressed, of the ranks with the same place on their nodes."""

    fast: GroupPart
    slow: GroupPart

    @property
    def size(self) -> int:
        return self.fast.size() * self.slow.size()

    @property
    def rank(self) -> int:
        """This rank's number, from 0: node by node."""
        return self.slow.rank() * self.fast.size() + self.fast.rank()

    @property
    def shard(self) -> str:
        """Name, in checkpoints, of the ranks that average the same shard."""
        return f"shard{self.fast.rank()}of{self.fast.size()}"

    def __str__(self) -> str:
        return f"{counted(self.slow.size(), 'node')} of {counted(self.fast.size(), 'rank')}"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def require_levels(levels: object) -> None:
    """Raise ConfigurationError, before any communication, unless `levels` is one of Levels."""
    if isinstance(levels, str) and levels in ("auto", "flat"):
        return
    example = 'levels=(mesh, "between")'
    if not isinstance(levels, tuple) or len(levels) != 2 or not isinstance(levels[0], DeviceMesh):
        given = repr(levels) if isinstance(levels, str) else describe(levels)
        raise ConfigurationError(
            f'levels is {given}: give "auto", "flat", or a 2-D DeviceMesh and the name of its dimension between the '
            f"nodes, {example}"
        )
    mesh, dim = levels
    names = mesh.mesh_dim_names or ()
    if mesh.ndim != 2:
        raise ConfigurationError(
            f"{example} needs a mesh of two dimensions, between the nodes and within them, and this one has "
            f"{mesh.ndim}: make it with init_device_mesh(device, (nodes, ranks of a node), mesh_dim_names=...), or "
            "give the process group of one dimension, mesh.get_group(dim), for averages over that alone"
        )
    if dim not in names:
        raise ConfigurationError(f"the mesh has no dimension {dim!r}, only {names or 'unnamed ones'}: {example}")
    if mesh.get_coordinate() is None:
        raise ConfigurationError("this rank is not in the mesh: average on its ranks only")


def choose_ranks(given: object, levels: object, caller: str) -> dist.ProcessGroup:
    """Return the ranks that average: a front end's first argument, or the mesh's ranks if it is None.

    levels: Levels, unchecked. caller: for choose_process_group(), which raises ConfigurationError.
    """
    mesh = levels[0] if isinstance(levels, tuple) and levels else None
    if given is None and isinstance(mesh, DeviceMesh) and mesh.get_coordinate() is not None:
        ranks = sorted(mesh.mesh.flatten().tolist())
        if len(ranks) < dist.get_world_size():
            return group_of(ranks)
    return choose_process_group(given, caller)


def nodes_of(mesh: DeviceMesh, dim: str) -> list[list[int]]:
    """Return the ranks of each node, in the order of the mesh. dim: the dimension between the nodes."""
    assert mesh.mesh_dim_names is not None
    nodes: list[list[int]] = mesh.mesh.movedim(mesh.mesh_dim_names.index(dim), 0).tolist()
    return nodes


def describe_levels(levels: Levels) -> str:
    if isinstance(levels, str):
        return levels
    nodes = nodes_of(*levels)
    listed = f"a mesh of nodes {nodes[:_LISTED_NODES]}"
    return listed if len(nodes) <= _LISTED_NODES else f"{listed} and more ({zlib.crc32(repr(nodes).encode()):08x})"


def mesh_groups(mesh: DeviceMesh, dim: str, process_group: dist.ProcessGroup) -> MeshGroups:
    """Return the groups of a mesh that require_levels() accepts; collective.

    Ranks have the mesh's order. Raises ConfigurationError unless the mesh has the ranks of the process group.
    """
    nodes, members = nodes_of(mesh, dim), world_ranks(process_group)
    if (ranks := sorted(itertools.chain(*nodes))) != sorted(members):
        raise ConfigurationError(
            f"the mesh has ranks {ranks}, and the process group {sorted(members)}: make the mesh of all ranks "
            "of the process group, and no others"
        )
    number = {rank: place for place, rank in enumerate(members)}
    numbers = [[number[rank] for rank in node] for node in nodes]
    return MeshGroups(*cut_group(process_group, [numbers, [*zip(*numbers, strict=True)]]))


class MeshReplicas(Replicas):
    """All ranks of a mesh, as RankReplicas; a broadcast crosses the slow dimension once."""

    def __init__(self, groups: MeshGroups, deadline_s: float) -> None:
        self.rank, self.size, self.world_rank = groups.rank, groups.size, dist.get_rank()
        self.is_root = self.rank == 0
        self._fast, self._slow = RankReplicas(groups.fast, deadline_s), RankReplicas(groups.slow, deadline_s)

    @override
    def gather(self, text: bytes) -> list[bytes]:
        return gather_in_levels(self._fast.gather, self._slow.gather)(text)

    @override
    def broadcast_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        if self._fast.is_root:
            self._slow.broadcast_tensors(tensors)
        self._fast.broadcast_tensors(tensors)

    @override
    def broadcast_bytes(self, data: bytes) -> bytes:
        if self._fast.is_root:
            data = self._slow.broadcast_bytes(data)
        return self._fast.broadcast_bytes(data)
