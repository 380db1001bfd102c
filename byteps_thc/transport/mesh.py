"""Ranks in two levels: a fast one, such as the GPUs of a node, and a slow one, between the nodes.

A mesh says which ranks those are, or they are found (nodes.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from typing_extensions import override

from byteps_thc.errors import ConfigurationError
from byteps_thc.settings import describe
from byteps_thc.transport.handshake import Gather, by_rank, with_rank
from byteps_thc.transport.replicas import RankReplicas, Replicas

#: Any bytes are text in it, and the text is those bytes again.
_ANY_BYTES = "latin-1"


def compressed_group(mesh: DeviceMesh, dim: str | None) -> dist.ProcessGroup:
    """Return this rank's process group of the dimension `dim`; None: of the only one. ConfigurationError otherwise."""
    names = mesh.mesh_dim_names or ()
    if dim is None and mesh.ndim != 1:
        raise ConfigurationError(f"the mesh has dimensions {names}: say which one to compress (dim=...)")
    if dim is not None and dim not in names:
        raise ConfigurationError(f"the mesh has no dimension {dim!r}, only {names or 'unnamed ones'}")
    return mesh.get_group(dim)


@dataclass(frozen=True)
class MeshGroups:
    """The two process groups that this rank is in. fast: averages exactly, on a node. slow: compressed, between the
    nodes, among the ranks that have the same place on theirs.
    """

    fast: dist.ProcessGroup
    slow: dist.ProcessGroup

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.fast.size() * self.slow.size()

    @property
    def rank(self) -> int:
        """This one's number, from 0: node by node."""
        return self.slow.rank() * self.fast.size() + self.fast.rank()

    @property
    def shard(self) -> str:
        """What checkpoints call the ranks that average the same shard."""
        return f"shard{self.fast.rank()}of{self.fast.size()}"

    def __str__(self) -> str:
        """As users see it."""
        return f"{counted(self.slow.size(), 'node')} of {counted(self.fast.size(), 'rank')}"


def counted(number: int, noun: str) -> str:
    """Return a number of things in words: 1 node, 2 nodes."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def require_mesh(mesh: object, dim: str | None) -> None:
    """ConfigurationError unless `mesh` is one, or None and `dim`, which names a dimension of it, is None, too."""
    if mesh is not None and not isinstance(mesh, DeviceMesh):
        raise ConfigurationError(f"mesh is {describe(mesh)}: give a 2-D DeviceMesh (init_device_mesh), or leave it out")
    if mesh is None and dim is not None:
        raise ConfigurationError(f"dim={dim!r} names a dimension of a mesh: give the 2-D DeviceMesh that has it")


def require_ranks_of(mesh: DeviceMesh, process_group: dist.ProcessGroup) -> None:
    """ConfigurationError unless a mesh has the ranks of a DDP model's process group."""
    ranks, others = mesh.mesh.flatten().tolist(), dist.get_process_group_ranks(process_group)
    if set(others) != set(ranks):
        raise ConfigurationError(
            f"the mesh has ranks {sorted(ranks)}, and the DDP model's process group {sorted(others)}: make "
            "the mesh of all ranks of the model, and no others"
        )


def mesh_groups(mesh: DeviceMesh, dim: str | None, caller: str) -> MeshGroups:
    """Return the groups of a 2-D mesh whose dimension `dim` is the slow one.

    caller: what users call. ConfigurationError, before any communication, for another mesh or name.
    """
    if mesh.ndim != 2:
        raise ConfigurationError(
            f"{caller} needs a mesh of two dimensions, between the nodes and within them, and this one has "
            f"{mesh.ndim}: make it with init_device_mesh(device, (nodes, ranks of a node), mesh_dim_names=...), or "
            "give the process group of one dimension, mesh.get_group(dim), for averages over that alone"
        )
    if mesh.get_coordinate() is None:
        raise ConfigurationError(f"this rank is not in the mesh: make {caller} on its ranks only")
    slow = compressed_group(mesh, dim)
    assert dim is not None
    assert mesh.mesh_dim_names is not None
    fast = mesh.get_group(1 - mesh.mesh_dim_names.index(dim))
    return MeshGroups(fast, slow)


def gather_over_mesh(fast: Gather, slow: Gather, text: bytes) -> list[bytes]:
    """Return the texts of all ranks of a mesh in the order of MeshGroups.rank; fast, slow: gather in its groups."""
    node = json.dumps([theirs.decode(_ANY_BYTES) for theirs in fast(text)]).encode()
    return [theirs.encode(_ANY_BYTES) for texts in slow(node) for theirs in json.loads(texts)]


def gather_by_rank_over_mesh(fast: Gather, slow: Gather, text: str) -> dict[int, str]:
    """As handshake.gather_by_rank, of all ranks of a mesh; fast, slow: gather in its groups."""
    return by_rank(gather_over_mesh(fast, slow, with_rank(dist.get_rank(), text)))


class MeshReplicas(Replicas):
    """All ranks of a mesh, of which the first is the root; what it sends crosses the slow dimension once.

    deadline_s: of each wait. As RankReplicas, the first call connects them.
    """

    def __init__(self, groups: MeshGroups, deadline_s: float) -> None:
        self.rank, self.size, self.world_rank = groups.rank, groups.size, dist.get_rank()
        self.is_root = self.rank == 0
        self._fast, self._slow = RankReplicas(groups.fast, deadline_s), RankReplicas(groups.slow, deadline_s)

    @override
    def gather(self, text: bytes) -> list[bytes]:
        return gather_over_mesh(self._fast.gather, self._slow.gather, text)

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
