"""BFRT Python for `bfshell -b`: plans as scripts, and running them.

bfshell ends with status 0 after any error in a script, so scripts end by printing a marker. They are flat: bfshell runs
them without module globals, where functions would not find each other.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from itertools import groupby
from pathlib import Path

from byteps_thc._base.errors import ConfigurationError, TransportError
from thc_switch.allocation import JobAllocation
from thc_switch.controls import JobCheck
from thc_switch.description import PortSettings, RecirculationPort, SwitchDescription
from thc_switch.plan import (
    ClearRegister,
    ClearTable,
    DefaultAction,
    Exact,
    Lpm,
    Match,
    MulticastGroup,
    Operation,
    Range,
    RemoveEntries,
    TableEntry,
    Ternary,
)
from thc_switch.targets.base import SwitchControl
from thc_switch.targets.bfrt_names import CHIP_NODE, IN_FLIGHT_S, flood_node, port_fields, register_fields

DONE = "thc: done"
_RESULT = "thc: result "
_PACKETS = "$COUNTER_SPEC_PKTS"
_TIMEOUT_S = 300


def script(operations: Iterable[Operation], switch: SwitchDescription) -> str:
    """Return BFRT Python that does the operations."""
    lines = [f"p4 = bfrt.{switch.program}.pipe"]
    shared_rows: dict[str, str] = {}
    for _, group in groupby(operations, key=_same_rows):
        batch = list(group)
        entries = [operation for operation in batch if isinstance(operation, TableEntry)]
        if entries:
            lines += _add_rows(entries, shared_rows)
        for operation in batch[len(entries) :]:
            lines += _statements(operation, switch)
    return "\n".join([*lines, "bfrt.complete_operations()", f"print({DONE!r})"]) + "\n"


def _same_rows(operation: Operation) -> tuple[str, ...]:
    return (operation.table, operation.action) if isinstance(operation, TableEntry) else ()


def _add_rows(entries: Sequence[TableEntry], shared_rows: dict[str, str]) -> Iterator[str]:
    """Yield one loop per table and action. Tables with the same rows (the copies of the lookup table) share them."""
    first = entries[0]
    names = [argument for name, match in first.keys for argument in _key_arguments(name, match)]
    names += [name for name, _ in first.params]
    if first.priority is not None:
        names.append("MATCH_PRIORITY")
    rows = "[" + ", ".join(str(_row(entry)) for entry in entries) + "]"
    if rows not in shared_rows:
        shared_rows[rows] = f"rows_{len(shared_rows)}"
        yield f"{shared_rows[rows]} = {rows}"
    arguments = ", ".join(f"{name}=row[{place}]" for place, name in enumerate(names))
    yield from _loop(f"row in {shared_rows[rows]}", f"p4.{first.table}.add_with_{first.action}({arguments})")


def _row(entry: TableEntry) -> tuple[int, ...]:
    keys = (value for _, match in entry.keys for value in astuple(match))
    priority = () if entry.priority is None else (entry.priority,)
    row = (*keys, *(value for _, value in entry.params), *priority)
    return tuple(int(value) for value in row)  # enums have another text


def _key_arguments(name: str, match: Match) -> tuple[str, ...]:
    match match:
        case Exact():
            return (name,)
        case Ternary():
            return (name, f"{name}_mask")
        case Lpm():
            return (name, f"{name}_p_length")
        case Range():
            return (f"{name}_start", f"{name}_end")


def _loop(over: str, statement: str) -> tuple[str, ...]:
    return ("bfrt.batch_begin()", f"for {over}:", f"    {statement}", "bfrt.batch_end()")


def _statements(operation: Operation, switch: SwitchDescription) -> tuple[str, ...]:
    match operation:
        case PortSettings():
            return _port(operation)
        case RecirculationPort(port=port, loopback_speed=None):
            node = f"bfrt.{CHIP_NODE[switch.architecture]}.pktgen.port_cfg"
            return (f"{node}.mod(dev_port={port}, recirculation_enable=True)",)
        case RecirculationPort():
            return _port(operation)
        case ClearTable(table):
            return (f"p4.{table}.clear()",)
        case RemoveEntries(table, key, value):
            found = f'p4.{table}.get({key}="^0x0*{value:X}$", regex=True, print_ents=False)'
            return (f"for entry in {found}:", "    entry.remove()")
        case DefaultAction(table, action, params):
            arguments = ", ".join(f"{name}={value}" for name, value in params)
            return (f"p4.{table}.set_default_with_{action}({arguments})",)
        case ClearRegister():
            return _zero(operation)
        case MulticastGroup():
            return _multicast(operation)
        case TableEntry():
            raise AssertionError("entries are added in loops")


def _port(port: PortSettings | RecirculationPort) -> tuple[str, ...]:
    """Yield the lines for a port, unless nothing changes: to set its speed, the driver takes it down."""
    number, wanted = port_fields(port)
    present = ", ".join(f'b"${name}": "{value}"' for name, value in wanted.items())
    fields = ", ".join(f'{name}="{value}"' for name, value in wanted.items())
    return (
        "port = {}",
        "for entry in bfrt.port.port.get(regex=True, print_ents=False):",
        f'    if entry.key[b"$DEV_PORT"] == {number}:',
        "        port = entry.data",
        f'if not {{{present}, b"$PORT_ENABLE": True}}.items() <= port.items():',
        f"    bfrt.port.port.entry(DEV_PORT={number}, {fields}, PORT_ENABLE=True).push()",
    )


def _zero(operation: ClearRegister) -> tuple[str, ...]:
    register, first, count = operation.register, operation.first, operation.count
    if count is None:
        return (f"p4.{register}.clear()",)
    fields = ", ".join(f"{name}=0" for name in register_fields(register))
    return _loop(f"index in range({first}, {first + count})", f"p4.{register}.mod(REGISTER_INDEX=index, {fields})")


def _multicast(group: MulticastGroup) -> tuple[str, ...]:
    """Yield one node per replication id."""
    ports = group.ports
    nodes = {rid or flood_node(group.group): rid for rid in ports}
    lines = [
        f"bfrt.pre.node.entry(MULTICAST_NODE_ID={node}, MULTICAST_RID={rid}, MULTICAST_LAG_ID=[], "
        f"DEV_PORT={ports[rid]}).push()"
        for node, rid in nodes.items()
    ]
    count = len(nodes)
    return (
        *lines,
        f"bfrt.pre.mgid.entry(MGID={group.group}, MULTICAST_NODE_ID={list(nodes)}, "
        f"MULTICAST_NODE_L1_XID_VALID={[False] * count}, MULTICAST_NODE_L1_XID={[0] * count}).push()",
    )


class BfshellControl(SwitchControl):
    """A running switch, through the SDE's bfshell. Each call starts it, which takes seconds: not for an agent.

    Raises ConfigurationError without the SDE.
    """

    IN_FLIGHT_S = IN_FLIGHT_S

    def __init__(self, switch: SwitchDescription) -> None:
        self._switch = switch
        self._command = find_bfshell()

    def apply(self, operations: Iterable[Operation]) -> None:
        """Do the operations in order."""
        self.run(script(operations, self._switch))

    def read_counter(self, name: str, first: int, count: int) -> list[int]:
        """Return the packets counted in `count` elements of a counter from `first`."""
        element = f"p4.{name}.get(COUNTER_INDEX=index, from_hw=True, print_ents=False)"
        return self._collect(f"index in range({first}, {first + count})", f'{element}.raw()["data"]["{_PACKETS}"]')

    def read_register(self, name: str, first: int, count: int) -> list[int]:
        """Return `count` elements of a register of plain words from `first`: the largest of all pipes."""
        element = f"p4.{name}.get(REGISTER_INDEX=index, from_hw=True, print_ents=False)"
        value = f'max({element}.raw()["data"]["{name}.f1"])'
        return self._collect(f"index in range({first}, {first + count})", value)

    def open_epoch(self, allocation: JobAllocation) -> int | None:
        """Return the epoch of admitted packets; None if the job is closed."""
        table = f"p4.{JobCheck.full_name('job')}"
        found = f'{table}.get(job_id="^0x0*{allocation.job_id:X}$", regex=True, print_ents=False)'
        epochs = self._collect(f"entry in {found}", 'entry.key[b"epoch"][0] if entry.action.endswith("enter") else 0')
        return next((epoch for epoch in epochs if epoch), None)

    def worker_packets(self, allocation: JobAllocation, worker: int) -> int:
        """Return the number of a worker's packets that the switch has accepted, ever."""
        entry = JobCheck.worker_entry(allocation, worker)
        keys = ", ".join(f"{name}={astuple(match)[0]}" for name, match in entry.keys)
        element = f"p4.{entry.table}.get({keys}, from_hw=True, print_ents=False)"
        return self._collect("once in [0]", f'{element}.raw()["data"]["{_PACKETS}"]')[0]

    def run(self, text: str) -> str:
        """Run a script that prints DONE at its end; return its output, TransportError if it stopped before."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "thc.py"
            path.write_text(text)
            try:
                result = subprocess.run(
                    [*self._command, "-b", str(path)],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise TransportError(f"bfshell did not finish within {_TIMEOUT_S} s; is bf_switchd running?") from error
        if DONE not in result.stdout.splitlines():
            last = "\n".join((result.stdout + result.stderr).splitlines()[-20:])
            raise TransportError(f"bfshell stopped in the script; its last lines:\n{last}")
        return result.stdout

    def _collect(self, over: str, element: str) -> list[int]:
        lines = [
            f"p4 = bfrt.{self._switch.program}.pipe",
            "result = []",
            f"for {over}:",
            f"    result.append({element})",
            f"print({_RESULT!r} + str(result))",
            f"print({DONE!r})",
        ]
        output = self.run("\n".join(lines) + "\n")
        line = next(line for line in output.splitlines() if line.startswith(_RESULT))
        values: list[int] = json.loads(line.removeprefix(_RESULT))
        return values


def find_bfshell() -> list[str]:
    """Return the command that starts bfshell. Raises ConfigurationError if no variable names it."""
    for variable, name in (("SDE", "run_bfshell.sh"), ("SDE_INSTALL", "bin/bfshell")):
        folder = os.environ.get(variable)
        if folder and os.access(Path(folder) / name, os.X_OK):
            return [str(Path(folder) / name)]
    raise ConfigurationError("bfshell not found: set SDE (with run_bfshell.sh) or SDE_INSTALL (with bin/bfshell)")
