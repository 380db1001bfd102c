"""simple_switch of bmv2, through simple_switch_CLI (Thrift).

Entries and multicast nodes have handles there, which are read from dumps.
"""

import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from byteps_thc._base.errors import ConfigurationError, TransportError
from thc_switch.allocation import JobAllocation
from thc_switch.controls import JobCheck
from thc_switch.description import PortSettings, RecirculationPort
from thc_switch.plan import (
    ClearRegister,
    ClearTable,
    DefaultAction,
    Match,
    MulticastGroup,
    Named,
    Operation,
    Range,
    RemoveEntries,
    TableEntry,
    full_action,
)
from thc_switch.targets.base import SwitchControl
from thc_switch.targets.bmv2_shell import Bmv2Shell

DEFAULT_ADDRESS = "127.0.0.1:9090"
# A place that was used 128 times has a negative handle.
_ENTRY = re.compile(r"^Dumping entry (-?0x[0-9a-f]+)$")
_KEY = re.compile(r"^\* (\S+)\s*: \S+\s+(\S+)")
_GROUP = re.compile(r"^mgrp\((\d+)\)$")
_NODE = re.compile(r"L1h=(\d+)")


def commands(operations: Iterable[Operation]) -> str:
    """Return simple_switch_CLI commands for the operations on a switch without multicast groups.

    Raises ConfigurationError for operations that need handles of a running switch.
    """
    node = 0
    lines: list[str] = []
    for operation in operations:
        if isinstance(operation, RemoveEntries):
            raise ConfigurationError("removing entries needs their handles: apply it to a running simple_switch")
        if isinstance(operation, MulticastGroup):
            lines.append(f"mc_mgrp_create {operation.group}")
            for create in _node_commands(operation):
                lines += [create, f"mc_node_associate {operation.group} {node}"]
                node += 1
        else:
            lines += _commands(operation)
    return "\n".join(lines) + "\n"


def _commands(
    operation: PortSettings | RecirculationPort | ClearTable | DefaultAction | TableEntry | ClearRegister,
) -> list[str]:
    match operation:
        case PortSettings() | RecirculationPort():
            return []  # simple_switch gets its ports at its start, and recirculates without one
        case ClearTable(table):
            return [f"table_clear {table}"]
        case DefaultAction(table, action, params):
            return [f"table_set_default {table} {full_action(table, action)}{_values(params)}"]
        case TableEntry(table, keys, action, params, priority):
            matches = " ".join(_match(match) for _, match in keys)
            last = "" if priority is None else f" {priority}"
            return [f"table_add {table} {full_action(table, action)} {matches} =>{_values(params)}{last}"]
        case ClearRegister(register, first, count):
            if count is None:
                return [f"register_reset {register}"]
            return [f"register_write {register} {index} 0" for index in range(first, first + count)]


def _match(match: Match) -> str:
    return f"{match.low:#x}->{match.high:#x}" if isinstance(match, Range) else str(match)


def _values(params: Named) -> str:
    return "".join(f" {value:#x}" for _, value in params)


def _node_commands(group: MulticastGroup) -> list[str]:
    return [f"mc_node_create {rid} " + " ".join(map(str, numbers)) for rid, numbers in group.ports.items()]


@dataclass
class _DumpedEntry:
    handle: int
    keys: dict[str, int] = field(default_factory=dict)
    """by the last part of the name; of masked keys the value, of ranges the low end"""
    action: str = ""


class Bmv2Control(SwitchControl):
    """A running simple_switch. address: IP:PORT of its Thrift server."""

    IN_FLIGHT_S = 0.1  # some hundred packets wait, for some 0.1 ms each

    def __init__(self, address: str = DEFAULT_ADDRESS) -> None:
        ip, _, port = address.rpartition(":")
        if not ip or not port.isdecimal():
            raise ConfigurationError(f"the address of simple_switch's Thrift server is IP:PORT, not {address!r}")
        self._address = address
        self._shell = Bmv2Shell([find_cli(), "--thrift-ip", ip, "--thrift-port", port])

    def apply(self, operations: Iterable[Operation]) -> None:
        """Do the operations in order."""
        batch: list[str] = []
        for operation in operations:
            if isinstance(operation, RemoveEntries | MulticastGroup):
                self.run(batch)  # the next operation reads the resulting state
                batch = []
                if isinstance(operation, RemoveEntries):
                    self._remove(operation)
                else:
                    self._set_group(operation)
            else:
                batch += _commands(operation)
        self.run(batch)

    def read_counter(self, name: str, first: int, count: int) -> list[int]:
        """Return the packets counted in `count` elements of a counter from `first`."""
        output = self.run([f"counter_read {name} {index}" for index in range(first, first + count)])
        return [int(packets) for packets in re.findall(r"(\d+) packets\)", output)]

    def read_register(self, name: str, first: int, count: int) -> list[int]:
        """Return `count` elements of a register of plain words from `first`."""
        output = self.run([f"register_read {name} {index}" for index in range(first, first + count)])
        return [int(value) for value in re.findall(r"\[\d+\]=\s*(\d+)", output)]

    def open_epoch(self, allocation: JobAllocation) -> int | None:
        """Return the epoch of admitted packets; None if the job is closed."""
        entries = self._dump(JobCheck.full_name("job"))
        wanted = (entry for entry in entries if entry.keys["job_id"] == allocation.job_id)
        return next((entry.keys["epoch"] for entry in wanted if entry.action.endswith("enter")), None)

    def worker_packets(self, allocation: JobAllocation, worker: int) -> int:
        """Return the number of a worker's packets that the switch has accepted, ever."""
        planned = JobCheck.worker_entry(allocation, worker)
        keys = " ".join(_match(match) for _, match in planned.keys)
        output = self.run([f"table_dump_entry_from_key {planned.table} {keys}"])
        handle = next((match for line in output.splitlines() if (match := _ENTRY.search(line))), None)
        if handle is None:
            raise TransportError(f"simple_switch has no entry {planned}: run thc switch install first")
        return self.read_counter(JobCheck.full_name("worker_packets"), int(handle[1], 16), 1)[0]

    def run(self, lines: Sequence[str]) -> str:
        """Run commands of simple_switch_CLI; return their output. TransportError for the first that fails."""
        if not lines:
            return ""
        try:
            return self._shell.run(lines)
        except TransportError as error:
            raise TransportError(f"simple_switch at {self._address}: {error}") from error

    def _remove(self, operation: RemoveEntries) -> None:
        entries = self._dump(operation.table)
        handles = [entry.handle for entry in entries if entry.keys[operation.key] == operation.value]
        self.run([f"table_delete {operation.table} {handle}" for handle in handles])

    def _dump(self, table: str) -> list[_DumpedEntry]:
        entries: list[_DumpedEntry] = []
        for line in self.run([f"table_dump {table}"]).splitlines():
            if found := _ENTRY.match(line):
                entries.append(_DumpedEntry(int(found[1], 16)))
            elif entries and (found := _KEY.match(line)):
                entries[-1].keys[found[1].rsplit(".", 1)[-1]] = int(found[2], 16)
            elif entries and line.startswith("Action entry: "):
                entries[-1].action = line.removeprefix("Action entry: ").split(" - ")[0]
            elif line.startswith("Dumping default entry"):
                break
        return entries

    def _set_group(self, group: MulticastGroup) -> None:
        nodes = self._nodes().get(group.group)
        lines = [f"mc_mgrp_create {group.group}"] if nodes is None else []
        for node in nodes or ():
            lines += [f"mc_node_dissociate {group.group} {node}", f"mc_node_destroy {node}"]
        lines += _node_commands(group)
        handles = re.findall(r"node was created with handle (\d+)", self.run(lines))
        self.run([f"mc_node_associate {group.group} {handle}" for handle in handles])

    def _nodes(self) -> dict[int, list[int]]:
        """Return multicast groups and the handles of their nodes."""
        groups: dict[int, list[int]] = {}
        nodes: list[int] = []
        for line in self.run(["mc_dump"]).splitlines():
            if found := _GROUP.match(line.strip()):
                nodes = groups[int(found[1])] = []
            elif found := _NODE.search(line):
                nodes.append(int(found[1]))
        return groups


def find_cli() -> str:
    """Return the path of simple_switch_CLI; ConfigurationError if bmv2 is not installed."""
    path = shutil.which("simple_switch_CLI")
    if path is None:
        raise ConfigurationError("simple_switch_CLI is not on PATH: install bmv2 (p4lang/behavioral-model)")
    return path
