"""Operations on a switch: table entries, multicast groups, registers to clear, ports. Plain data, stable order.

Names are the P4 programs' control-plane names, without architecture prefixes such as `pipe.`.
"""

import enum
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from thc_switch.description import PortSettings, RecirculationPort


@dataclass(frozen=True)
class Exact:
    """A key that must be equal."""

    value: int

    def __str__(self) -> str:
        return f"{self.value:#x}"


@dataclass(frozen=True)
class Ternary:
    """A key compared under a mask; mask 0 matches everything."""

    value: int
    mask: int

    def __str__(self) -> str:
        return f"{self.value:#x}&&&{self.mask:#x}"


@dataclass(frozen=True)
class Lpm:
    """A key with a prefix."""

    value: int
    prefix_length: int

    def __str__(self) -> str:
        return f"{self.value:#x}/{self.prefix_length}"


@dataclass(frozen=True)
class Range:
    """A key within bounds, both included."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low:#x}..{self.high:#x}"


def full_action(table: str, action: str) -> str:
    """Return the control-plane name of an action, which is declared in its table's control."""
    return f"{table.rpartition('.')[0]}.{action}"


Match = Exact | Ternary | Lpm | Range


Named = tuple[tuple[str, int], ...]


def _named(params: Named) -> str:
    return ", ".join(f"{name}={value:#x}" for name, value in params)


@dataclass(frozen=True)
class TableEntry:
    """One entry. Keys and parameters are named and in the order the P4 program declares them."""

    table: str
    keys: tuple[tuple[str, Match], ...]
    action: str
    params: Named = ()
    priority: int | None = None
    """of ternary and range tables; the smaller number wins"""

    def __str__(self) -> str:
        keys = ", ".join(f"{name}={match}" for name, match in self.keys)
        priority = "" if self.priority is None else f" priority {self.priority}"
        return f"{self.table}[{keys}]{priority} -> {self.action}({_named(self.params)})"


@dataclass(frozen=True)
class DefaultAction:
    """A table's action for packets without an entry."""

    table: str
    action: str
    params: Named = ()

    def __str__(self) -> str:
        return f"{self.table}[default] -> {self.action}({_named(self.params)})"


@dataclass(frozen=True)
class MulticastGroup:
    """Copies of a packet: (egress port, replication id) each."""

    group: int
    replicas: tuple[tuple[int, int], ...]

    @property
    def ports(self) -> dict[int, list[int]]:
        """Ports by replication id."""
        found: dict[int, list[int]] = {}
        for port, rid in self.replicas:
            found.setdefault(rid, []).append(port)
        return found

    def __str__(self) -> str:
        return f"group {self.group} -> " + ", ".join(f"port {port} rid {rid}" for port, rid in self.replicas)


@dataclass(frozen=True)
class ClearTable:
    """Remove all entries of a table."""

    table: str

    def __str__(self) -> str:
        return f"clear {self.table}"


@dataclass(frozen=True)
class RemoveEntries:
    """Remove the entries of a table whose key `key` is `value`, exact or under a full mask."""

    table: str
    key: str
    value: int

    def __str__(self) -> str:
        return f"remove {self.table}[{self.key}={self.value:#x}, ...]"


@dataclass(frozen=True)
class ClearRegister:
    """Zero `count` elements of a register from `first`; None: all elements."""

    register: str
    first: int = 0
    count: int | None = None

    def __str__(self) -> str:
        elements = "" if self.count is None else f"[{self.first} .. {self.first + self.count - 1}]"
        return f"zero {self.register}{elements}"


PortOperation = PortSettings | RecirculationPort
TableOperation = ClearTable | RemoveEntries | DefaultAction | TableEntry
Operation = PortOperation | TableOperation | MulticastGroup | ClearRegister


class Section(enum.Enum):
    """Parts of a plan that can be installed separately."""

    PORTS = "ports"
    MULTICAST = "multicast"
    TABLES = "tables"


ALL_SECTIONS = tuple(Section)


@dataclass(frozen=True)
class Plan:
    """Everything to install before the first packet. Jobs are closed: the agent opens them (agent.py)."""

    tables: tuple[str, ...]
    """all tables that the control plane fills; other entries in them are removed"""
    defaults: tuple[DefaultAction, ...]
    entries: tuple[TableEntry, ...]
    registers: tuple[ClearRegister, ...]
    groups: tuple[MulticastGroup, ...]
    ports: tuple[PortSettings, ...] = ()
    recirculation: tuple[RecirculationPort, ...] = ()

    def operations(self, sections: Collection[Section] = ALL_SECTIONS) -> Iterator[Operation]:
        """Yield the steps that install the plan; repeating them changes nothing."""
        if Section.PORTS in sections:
            yield from self.ports
            yield from self.recirculation
        if Section.MULTICAST in sections:
            yield from self.groups
        if Section.TABLES in sections:
            yield from (ClearTable(table) for table in self.tables)
            yield from self.registers
            yield from self.defaults
            yield from self.entries

    def lines(self, sections: Collection[Section] = ALL_SECTIONS) -> list[str]:
        """Return the steps, a line each."""
        return [str(operation) for operation in self.operations(sections)]
