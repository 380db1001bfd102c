"""The P4 model in this process as a target."""

from collections.abc import Iterable
from dataclasses import astuple
from typing import Any

from byteps_thc._base.errors import TransportError
from thc_p4_model import compile_program
from thc_p4_model.architectures import TnaSwitch, V1ModelSwitch, new_switch
from thc_p4_model.control import ControlPlane
from thc_p4_model.errors import ControlError
from thc_switch.allocation import JobAllocation
from thc_switch.controls import JobCheck
from thc_switch.description import PortSettings, RecirculationPort, SwitchDescription
from thc_switch.limits import PIPE_COUNTS
from thc_switch.plan import (
    ClearRegister,
    ClearTable,
    DefaultAction,
    Exact,
    Match,
    MulticastGroup,
    Operation,
    RemoveEntries,
    TableEntry,
)
from thc_switch.programs import INCLUDE_FOLDER, program_path
from thc_switch.targets.base import SwitchControl

#: Name of a program, and preprocessor symbols.
_PROGRAMS: dict[str, tuple[str, dict[str, str]]] = {
    "v1model": ("v1model", {}),
    "tofino1": ("tna", {}),
    "tofino2": ("tna", {"THC_TOFINO2": ""}),
}


class ModelControl(SwitchControl):
    """A switch of the P4 model. Raises TransportError if the program lacks a table, action, ..."""

    IN_FLIGHT_S = 0.0  # its control plane runs in the thread that passes packets

    def __init__(self, switch: ControlPlane, pipes: int = 1) -> None:
        self._switch = switch
        self._pipes = pipes

    def apply(self, operations: Iterable[Operation]) -> None:
        """Do the operations in order."""
        for operation in operations:
            try:
                self._apply(operation)
            except ControlError as error:
                raise TransportError(f"the P4 model refuses {operation}: {error}") from error

    def read_counter(self, name: str, first: int, count: int) -> list[int]:
        """Return the packets counted in `count` elements of a counter from `first`."""
        return [self._switch.counter_read(name, index).packets for index in range(first, first + count)]

    def read_register(self, name: str, first: int, count: int) -> list[int]:
        """Return `count` elements of a register of plain words from `first`: the largest of all pipes."""
        pipes = [self._switch.register_read_range(name, first, count, pipe) for pipe in range(self._pipes)]
        return [max(values) for values in zip(*pipes, strict=True)]

    def open_epoch(self, allocation: JobAllocation) -> int | None:
        """Return the epoch of admitted packets; None if the job is closed."""
        for entry in self._switch.table_entries(JobCheck.full_name("job")):
            job_id, epoch = entry.match["job_id"][0], entry.match["epoch"][0]
            if job_id == allocation.job_id and entry.action.endswith(".enter"):
                return int(epoch)
        return None

    def worker_packets(self, allocation: JobAllocation, worker: int) -> int:
        """Return the number of a worker's packets that the switch has accepted, ever."""
        planned = JobCheck.worker_entry(allocation, worker)
        wanted = {name: _model_match(match) for name, match in planned.keys}
        for entry in self._switch.table_entries(planned.table):
            if entry.match == wanted:
                return entry.packets
        raise TransportError(f"the P4 model has no entry {planned}: install the plan first")

    def _apply(self, operation: Operation) -> None:
        match operation:
            case TableEntry(table, keys, action, params, priority):
                matches = {name: _model_match(match) for name, match in keys}
                self._switch.table_add(table, matches, action, dict(params), priority)
            case ClearTable(table):
                self._switch.table_clear(table)
            case RemoveEntries(table, key, value):
                self._remove(table, key, value)
            case DefaultAction(table, action, params):
                self._switch.table_set_default(table, action, dict(params))
            case ClearRegister(register, first, count):
                self._switch.register_clear(register, first, count)
            case MulticastGroup(group, replicas):
                self._switch.multicast_group_set(group, replicas)
            case RecirculationPort(port=port, loopback_speed=speed):
                if speed is not None and isinstance(self._switch, TnaSwitch):
                    self._switch.set_loopback(port)
            case PortSettings():
                pass  # the model has all ports of its architecture

    def _remove(self, table: str, key: str, value: int) -> None:
        for entry in self._switch.table_entries(table):
            found = entry.match[key]
            if value == (found[0] if isinstance(found, tuple) else found):
                self._switch.table_delete(table, entry.match, entry.priority)


def new_switch_with_control(switch: SwitchDescription) -> tuple[V1ModelSwitch | TnaSwitch, ModelControl]:
    """Return a switch with the program for the description's architecture, and its control."""
    name, defines = _PROGRAMS[switch.architecture]
    program = compile_program(program_path(name), [INCLUDE_FOLDER], defines)
    if switch.architecture == "v1model":
        model = new_switch(program)
        return model, ModelControl(model)
    ports = [entry.port for entry in switch.recirculation]
    pipes = next(count for count in PIPE_COUNTS if switch.pipe_of(max(ports)) < count)
    model = new_switch(program, pipes=pipes)
    return model, ModelControl(model, pipes)


def _model_match(match: Match) -> Any:
    return match.value if isinstance(match, Exact) else astuple(match)
