"""A control plane's rights on a running switch: tables, registers, counters, multicast groups, mirrors, digests.

Objects go by their control-plane name (`Ingress.forwarding.routes`), with or without a leading `pipe.`, or by any
unique suffix (`job_check.job`). Everything takes the switch's lock and so is safe while packets run. Errors are
`ControlError`s that list the alternatives.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from thc_p4_model.errors import ControlError, resolve
from thc_p4_model.externs.counters import Count, CounterArray
from thc_p4_model.externs.registers import RegisterArray
from thc_p4_model.externs.tna_registers import RegisterParam
from thc_p4_model.interfaces import ProgramInstance
from thc_p4_model.replication import MirrorSession, Node, Replication
from thc_p4_model.tables import Table

Match = Mapping[str, Any] | Sequence[Any]
Params = Mapping[str, Any] | Sequence[Any]
Extern = TypeVar("Extern")


class TableEntry(NamedTuple):
    """An entry as the control plane reads it; `match` by key name as in `thc_p4_model.match.MatchKey`."""

    match: dict[str, Any]
    action: str
    params: dict[str, Any]
    priority: int
    packets: int
    """For direct counters; otherwise 0."""
    bytes: int


class ControlPlane:
    """The control plane's side of a switch. Tables are the same in all pipes; registers are each pipe's own."""

    def __init__(self, instances: Sequence[ProgramInstance]) -> None:
        self.lock = threading.RLock()
        self.replication = Replication()
        self._instances = instances

    # Tables.

    def table_names(self) -> list[str]:
        """All tables."""
        return list(self._instances[0].tables)

    def table_is_mutable(self, table: str) -> bool:
        """Whether the control plane may change the entries."""
        info = self._tables(table)[0].info
        return bool(info.keys) and not info.const_entries

    def table_add(
        self, table: str, match: Match, action: str, params: Params = (), priority: int | None = None
    ) -> None:
        """Add an entry; smaller priorities win, tables with ternary, range or optional keys need one."""
        with self.lock:
            for each in self._tables(table):
                each.add(match, action, params, priority)

    def table_modify(
        self, table: str, match: Match, action: str, params: Params = (), priority: int | None = None
    ) -> None:
        """Change the action of an entry."""
        with self.lock:
            for each in self._tables(table):
                each.modify(match, action, params, priority)

    def table_delete(self, table: str, match: Match, priority: int | None = None) -> None:
        """Remove an entry."""
        with self.lock:
            for each in self._tables(table):
                each.delete(match, priority)

    def table_clear(self, table: str) -> None:
        """Remove all entries of a table but const ones of the program."""
        with self.lock:
            for each in self._tables(table):
                each.clear()

    def table_set_default(self, table: str, action: str, params: Params = ()) -> None:
        """The action on a miss."""
        with self.lock:
            for each in self._tables(table):
                each.set_default(action, params)

    def table_reset_default(self, table: str) -> None:
        """Back to the default action of the program."""
        with self.lock:
            for each in self._tables(table):
                each.reset_default()

    def table_entries(self, table: str) -> list[TableEntry]:
        """The entries of a table; direct counts are summed over the pipes."""
        with self.lock:
            tables = self._tables(table)
            names = [key.name for key in tables[0].info.keys]
            result = []
            for copies in zip(*(each.entries() for each in tables), strict=True):
                entry = copies[0]
                action = tables[0].info.actions[entry.result[0]]
                result.append(
                    TableEntry(
                        dict(zip(names, entry.match, strict=True)),
                        action.name,
                        dict(zip((param.name for param in action.params), entry.result[1], strict=True)),
                        entry.priority,
                        sum(copy.packets for copy in copies),
                        sum(copy.bytes for copy in copies),
                    )
                )
            return result

    # Registers and counters.

    def register_names(self) -> list[str]:
        """All registers."""
        return self._extern_names(RegisterArray)

    def register_size(self, register: str) -> int:
        """Values of a register, in one pipe."""
        return len(self._externs(register, RegisterArray)[0])

    def register_read(self, register: str, index: int, pipe: int = 0) -> Any:
        """One value: an int, or a dictionary of a struct's fields."""
        with self.lock:
            return self._of_pipe(self._externs(register, RegisterArray), pipe).get(index)

    def register_read_range(self, register: str, first: int = 0, count: int | None = None, pipe: int = 0) -> list[Any]:
        """`count` values from `first` on, or all that follow."""
        with self.lock:
            array = self._of_pipe(self._externs(register, RegisterArray), pipe)
            return array.get_range(first, len(array) - first if count is None else count)

    def register_write(self, register: str, index: int, value: Any, pipe: int | None = None) -> None:
        """Set one value, in one pipe or all."""
        with self.lock:
            for array in self._in_pipe(self._externs(register, RegisterArray), pipe):
                array.set(index, value)

    def register_clear(self, register: str, first: int = 0, count: int | None = None, pipe: int | None = None) -> None:
        """Reset `count` elements from `first`, or all that follow, to initial values."""
        with self.lock:
            for array in self._in_pipe(self._externs(register, RegisterArray), pipe):
                array.reset(first, count)

    def register_param_set(self, name: str, value: int) -> None:
        """Set a RegisterParam."""
        with self.lock:
            for param in self._externs(name, RegisterParam):
                param.set(value)

    def counter_names(self) -> list[str]:
        """All indexed counters."""
        return self._extern_names(CounterArray)

    def counter_read(self, counter: str, index: int, pipe: int | None = None) -> Count:
        """Packets and bytes, of one pipe or all together."""
        with self.lock:
            arrays = self._in_pipe(self._externs(counter, CounterArray), pipe)
            return sum((array.get(index) for array in arrays), start=Count(0, 0))

    def counter_clear(self, counter: str) -> None:
        """All counts to 0, in all pipes. Direct counters are cleared with the entries of their table."""
        with self.lock:
            for array in self._externs(counter, CounterArray):
                array.reset()

    # Replication.

    def multicast_group_create(self, group: int, nodes: Iterable[Node | tuple[int, int]]) -> None:
        """A new group of (port, rid) nodes."""
        with self.lock:
            self.replication.create(group, nodes)

    def multicast_group_set(self, group: int, nodes: Iterable[Node | tuple[int, int]]) -> None:
        """The nodes of a group, which may exist."""
        with self.lock:
            self.replication.set(group, nodes)

    def multicast_group_delete(self, group: int) -> None:
        """Remove a group."""
        with self.lock:
            self.replication.delete(group)

    def multicast_groups(self) -> Mapping[int, tuple[Node, ...]]:
        """All groups."""
        with self.lock:
            return self.replication.groups()

    def multicast_exclude_ports(self, exclusion_id: int, ports: Iterable[int]) -> None:
        """TNA: the ports of a level 2 exclusion id."""
        with self.lock:
            self.replication.set_excluded_ports(exclusion_id, ports)

    def mirror_session_set(
        self, session: int, port: int | None = None, group: int | None = None, max_bytes: int | None = None
    ) -> None:
        """The targets of a session's clones."""
        with self.lock:
            self.replication.set_mirror(session, MirrorSession(port, group, max_bytes))

    def mirror_session_delete(self, session: int) -> None:
        """Remove a session: its clones disappear."""
        with self.lock:
            self.replication.delete_mirror(session)

    # Names.

    def _tables(self, name: str) -> list[Table]:
        full = resolve(name, self._instances[0].tables, "table")
        tables = [instance.tables[full] for instance in self._instances]
        return [table for table in tables if isinstance(table, Table)]

    def _externs(self, name: str, kind: type[Extern]) -> list[Extern]:
        full = resolve(name, self._extern_names(kind), kind.__name__.removesuffix("Array").lower())
        found = [instance.externs[full] for instance in self._instances]
        return [extern for extern in found if isinstance(extern, kind)]

    def _extern_names(self, kind: type[Any]) -> list[str]:
        return [name for name, extern in self._instances[0].externs.items() if isinstance(extern, kind)]

    @staticmethod
    def _of_pipe(externs: list[Extern], pipe: int) -> Extern:
        if not 0 <= pipe < len(externs):
            raise ControlError(f"there is no pipe {pipe}: the switch has {len(externs)}")
        return externs[pipe]

    def _in_pipe(self, externs: list[Extern], pipe: int | None) -> list[Extern]:
        return externs if pipe is None else [self._of_pipe(externs, pipe)]
