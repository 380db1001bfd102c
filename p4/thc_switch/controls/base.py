"""Base of the classes for P4 controls."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from thc_switch.description import Deployment
from thc_switch.plan import ClearRegister, DefaultAction, Exact, Match, MulticastGroup, TableEntry

Contents = TableEntry | DefaultAction | MulticastGroup | ClearRegister


class Control:
    """Computes the entries of one P4 control. Subclasses are named after their P4 control."""

    #: name of the control's instance
    INSTANCE: ClassVar[str]
    #: tables that the control plane fills; others have constant entries
    TABLES: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def contents(cls, deployment: Deployment) -> Iterator[Contents]:  # noqa: ARG003
        """Yield entries, default actions, groups and registers that must start at zero, in a stable order."""
        yield from ()

    @classmethod
    def full_name(cls, name: str) -> str:
        """Return the control-plane name of an object in this control."""
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
