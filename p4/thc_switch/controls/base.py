"""What the classes for the P4 controls share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Address
from typing import ClassVar

from thc_switch.allocation import JobAllocation
from thc_switch.description import Deployment
from thc_switch.plan import ClearRegister, DefaultAction, Exact, Match, MulticastGroup, TableEntry


class Control:
    """Computes the contents of one P4 control's tables. Subclasses are named after their P4 control."""

    #: name of the control's instance
    INSTANCE: ClassVar[str]
    #: tables the control plane fills; others have constant entries
    TABLES: ClassVar[tuple[str, ...]] = ()

    def __init__(self, deployment: Deployment, allocations: Sequence[JobAllocation]) -> None:
        self.switch = deployment.switch
        self.deployment = deployment
        self.allocations = allocations

    def tables(self) -> list[str]:
        """Full names of the tables."""
        return [self.full_name(table) for table in self.TABLES]

    def entries(self) -> Iterator[TableEntry]:
        """Entries, in a stable order."""
        yield from ()

    def defaults(self) -> Iterator[DefaultAction]:
        """Default actions that depend on the deployment."""
        yield from ()

    def registers(self) -> Iterator[ClearRegister]:
        """Registers that must start at zero."""
        yield from ()

    def groups(self) -> Iterator[MulticastGroup]:
        """Multicast groups."""
        yield from ()

    @classmethod
    def full_name(cls, name: str) -> str:
        """Return the control-plane name of something in this control."""
        return f"{cls.INSTANCE}.{name}"

    @classmethod
    def entry(
        cls, table: str, keys: Mapping[str, Match | int], action: str, *, priority: int | None = None, **params: int
    ) -> TableEntry:
        """Make an entry; integers are exact keys."""
        matches = tuple((name, Exact(key) if isinstance(key, int) else key) for name, key in keys.items())
        return TableEntry(cls.full_name(table), matches, action, tuple(params.items()), priority)

    @classmethod
    def default(cls, table: str, action: str, **params: int) -> DefaultAction:
        """Make a default action."""
        return DefaultAction(cls.full_name(table), action, tuple(params.items()))


def mac_number(mac: str) -> int:
    """Return a MAC address as a 48-bit number."""
    return int(mac.replace(":", ""), 16)


def ip_number(ip: IPv4Address) -> int:
    """Return an IPv4 address as a 32-bit number."""
    return int(ip)
