"""Multicast groups and mirror sessions, as the control plane sets them up."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from thc_p4_model.errors import ControlError


class Node(NamedTuple):
    """One copy of a multicast packet."""

    port: int
    rid: int = 0
    """Replication id: `egress_rid` of the copy."""
    exclusion_id: int | None = None
    """TNA: packets with this level 1 exclusion id skip the node."""


class MirrorSession(NamedTuple):
    """Target of clones: a port, a multicast group, or both."""

    port: int | None = None
    group: int | None = None
    max_bytes: int | None = None
    """TNA: longer copies are cut."""


class Replication:
    """Multicast groups by number, from 1."""

    def __init__(self) -> None:
        self._groups: dict[int, tuple[Node, ...]] = {}
        self._sessions: dict[int, MirrorSession] = {}
        self._excluded_ports: dict[int, frozenset[int]] = {}

    def create(self, group: int, nodes: Iterable[Node | tuple[int, int]]) -> None:
        """A new group of (port, rid) nodes; ControlError when it exists."""
        if group in self._groups:
            raise ControlError(f"multicast group {group} exists already")
        self.set(group, nodes)

    def set(self, group: int, nodes: Iterable[Node | tuple[int, int]]) -> None:
        """The nodes of a group, new or not."""
        if not 1 <= group < 1 << 16:
            raise ControlError(f"multicast group {group} is not within 1..65535")
        self._groups[group] = tuple(Node(*node) for node in nodes)

    def delete(self, group: int) -> None:
        """Remove a group."""
        if self._groups.pop(group, None) is None:
            raise ControlError(f"there is no multicast group {group}")

    def clear(self) -> None:
        """Remove all groups."""
        self._groups.clear()

    def groups(self) -> Mapping[int, tuple[Node, ...]]:
        """All groups."""
        return dict(self._groups)

    def set_excluded_ports(self, exclusion_id: int, ports: Iterable[int]) -> None:
        """TNA: ports that a level 2 exclusion id stands for."""
        self._excluded_ports[exclusion_id] = frozenset(ports)

    def copies(self, group: int, rid: int = 0, level1: int = 0, level2: int = 0) -> Iterator[Node]:
        """The copies of a packet of this group; none for an unknown group.

        A packet's `rid` and level 2 exclusion id drop the copies of its own replication id to the excluded ports.
        """
        excluded = self._excluded_ports.get(level2, frozenset())
        for node in self._groups.get(group, ()):
            if node.exclusion_id is not None and node.exclusion_id == level1:
                continue
            if node.rid == rid and node.port in excluded:
                continue
            yield node

    def set_mirror(self, session: int, mirror: MirrorSession) -> None:
        """A mirror session, new or not."""
        self._sessions[session] = mirror

    def delete_mirror(self, session: int) -> None:
        """Remove a mirror session."""
        if self._sessions.pop(session, None) is None:
            raise ControlError(f"there is no mirror session {session}")

    def mirror(self, session: int) -> MirrorSession | None:
        """A mirror session, or None: clones to it disappear."""
        return self._sessions.get(session)
