"""A running Tofino switch through BF Runtime's gRPC server, with the client library of the SDE (bfrt_grpc)."""

import importlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

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
    Named,
    Operation,
    Range,
    RemoveEntries,
    TableEntry,
    Ternary,
    full_action,
)
from thc_switch.targets.base import SwitchControl
from thc_switch.targets.bfrt_names import CHIP_NODE, IN_FLIGHT_S, flood_node, port_fields, register_fields

DEFAULT_ADDRESS = "127.0.0.1:50052"
_PACKETS = "$COUNTER_SPEC_PKTS"
_ALL_PIPES = 0xFFFF
#: Entries of one write request; larger ones exceed gRPC's message size.
_BATCH = 256


class GrpcControl(SwitchControl):
    """A switch whose bf_switchd runs the description's program. client_id: unique among the server's clients."""

    IN_FLIGHT_S = IN_FLIGHT_S

    def __init__(self, switch: SwitchDescription, client_id: int = 0, device_id: int = 0) -> None:
        self._client = load_client()
        self._switch = switch
        program, address = switch.program, switch.control_address or DEFAULT_ADDRESS
        try:
            self._connection = self._client.ClientInterface(address, client_id=client_id, device_id=device_id)
            self._connection.bind_pipeline_config(program)
            self._info = self._connection.bfrt_info_get(program)
        except Exception as error:  # the library raises any gRPC error
            raise TransportError(f"no BF Runtime for {program} at {address}: is bf_switchd running it?") from error
        self._target = self._client.Target(device_id=device_id, pipe_id=_ALL_PIPES)

    def apply(self, operations: Iterable[Operation]) -> None:
        """Do the operations in order."""
        for _, group in groupby(operations, key=_same_request):
            batch = list(group)
            with self._asking(f"does not {batch[0]}"):
                self._apply(batch)

    def read_counter(self, name: str, first: int, count: int) -> list[int]:
        """Return the packets counted in `count` elements of a counter from `first`."""
        return [int(value) for value in self._read(name, "$COUNTER_INDEX", _PACKETS, first, count)]

    def read_register(self, name: str, first: int, count: int) -> list[int]:
        """Return `count` elements of a register of plain words from `first`: the largest of all pipes."""
        return [max(values) for values in self._read(name, "$REGISTER_INDEX", f"{name}.f1", first, count)]

    def open_epoch(self, allocation: JobAllocation) -> int | None:
        """Return the epoch of admitted packets; None if the job is closed."""
        table = self._info.table_get(JobCheck.full_name("job"))
        with self._asking("does not tell its jobs"):
            for data, key in table.entry_get(self._target, None, {"from_hw": False}):
                keys = key.to_dict()
                enters = data.to_dict()["action_name"].endswith(".enter")
                if enters and keys["job_id"]["value"] == allocation.job_id:
                    return int(keys["epoch"]["value"])
        return None

    def worker_packets(self, allocation: JobAllocation, worker: int) -> int:
        """Return the number of a worker's packets that the switch has accepted, ever."""
        entry = JobCheck.worker_entry(allocation, worker)
        table = self._info.table_get(entry.table)
        with self._asking(f"does not count {entry}"):
            found = next(table.entry_get(self._target, [self._key(table, entry)], {"from_hw": True}), None)
        if found is None:
            raise TransportError(f"the switch has no entry {entry}: run thc switch install first")
        return int(found[0].to_dict()[_PACKETS])

    @contextmanager
    def _asking(self, failure: str) -> Iterator[None]:
        """Convert errors of the library to TransportError. Reads raise gRPC's own errors, during iteration."""
        try:
            yield
        except (self._client.BfruntimeRpcException, self._client.grpc.RpcError) as error:
            raise TransportError(f"the switch {failure}: {error}") from error

    def _apply(self, batch: Sequence[Operation]) -> None:
        if isinstance(batch[0], TableEntry):
            return self._add([operation for operation in batch if isinstance(operation, TableEntry)])
        for operation in batch:
            match operation:
                case ClearTable(table):
                    self._info.table_get(table).entry_del(self._target)
                case RemoveEntries():
                    self._remove(operation)
                case DefaultAction(name, action, params):
                    table = self._info.table_get(name)
                    table.default_entry_set(self._target, self._data(table, params, full_action(name, action)))
                case ClearRegister(register, _, None):
                    self._info.table_get(register).entry_del(self._target)
                case ClearRegister(register, first, int(count)):
                    self._zero(register, first, count)
                case MulticastGroup():
                    self._set_group(operation)
                case PortSettings() | RecirculationPort():
                    self._set_port(operation)
        return None

    def _add(self, entries: Sequence[TableEntry]) -> None:
        table = self._info.table_get(entries[0].table)
        for start in range(0, len(entries), _BATCH):
            batch = entries[start : start + _BATCH]
            keys = [self._key(table, entry) for entry in batch]
            data = [self._data(table, entry.params, full_action(entry.table, entry.action)) for entry in batch]
            table.entry_add_or_mod(self._target, keys, data)

    def _key(self, table: Any, entry: TableEntry) -> Any:
        fields = [self._key_field(name, match) for name, match in entry.keys]
        if entry.priority is not None:
            fields.append(self._client.KeyTuple("$MATCH_PRIORITY", entry.priority))
        return table.make_key(fields)

    def _key_field(self, name: str, match: Match) -> Any:
        match match:
            case Exact(value):
                return self._client.KeyTuple(name, value)
            case Ternary(value, mask):
                return self._client.KeyTuple(name, value, mask=mask)
            case Lpm(value, length):
                return self._client.KeyTuple(name, value, prefix_len=length)
            case Range(low, high):
                return self._client.KeyTuple(name, low=low, high=high)

    def _data(self, table: Any, params: Named, action: str | None = None) -> Any:
        return table.make_data([self._client.DataTuple(name, value) for name, value in params], action)

    def _remove(self, operation: RemoveEntries) -> None:
        table = self._info.table_get(operation.table)
        keys = [key for _, key in table.entry_get(self._target, None, {"from_hw": False})]
        keys = [key for key in keys if key.to_dict()[operation.key]["value"] == operation.value]
        if keys:
            table.entry_del(self._target, keys)

    def _zero(self, register: str, first: int, count: int) -> None:
        table = self._info.table_get(register)
        zero = tuple((f"{register}.{field}", 0) for field in register_fields(register))
        for start in range(first, first + count, _BATCH):
            indices = range(start, min(start + _BATCH, first + count))
            keys = [table.make_key([self._client.KeyTuple("$REGISTER_INDEX", index)]) for index in indices]
            table.entry_mod(self._target, keys, [self._data(table, zero) for _ in indices])

    def _read(self, name: str, index: str, field: str, first: int, count: int) -> list[Any]:
        table = self._info.table_get(name)
        keys = [table.make_key([self._client.KeyTuple(index, number)]) for number in range(first, first + count)]
        with self._asking(f"does not tell {name}"):
            return [data.to_dict()[field] for data, _ in table.entry_get(self._target, keys, {"from_hw": True})]

    def _set_port(self, port: PortSettings | RecirculationPort) -> None:
        if isinstance(port, RecirculationPort) and port.loopback_speed is None:
            enable = self._client.DataTuple("recirculation_enable", bool_val=True)
            table = self._info.table_get(f"{CHIP_NODE[self._switch.architecture]}.pktgen.port_cfg")
            key = table.make_key([self._client.KeyTuple("dev_port", port.port)])
            table.entry_mod(self._target, [key], [table.make_data([enable])])
            return
        number, wanted = port_fields(port)
        table = self._info.table_get("$PORT")
        key = table.make_key([self._client.KeyTuple("$DEV_PORT", number)])
        # To set a port's speed, the driver takes it down, even if the speed is the same.
        if not wanted.items() <= self._port_fields(table, key).items():
            strings = [self._client.DataTuple(f"${name}", str_val=value) for name, value in wanted.items()]
            enable = self._client.DataTuple("$PORT_ENABLE", bool_val=True)
            table.entry_add_or_mod(self._target, [key], [table.make_data([*strings, enable])])

    def _port_fields(self, table: Any, key: Any) -> dict[str, Any]:
        """Return the settings of a port; {} if it is disabled, or has none, which is an error of the server."""
        try:
            found = next(table.entry_get(self._target, [key], {"from_hw": False}), None)
        except (self._client.BfruntimeRpcException, self._client.grpc.RpcError):
            return {}
        fields = {} if found is None else found[0].to_dict()
        return {name.removeprefix("$"): value for name, value in fields.items()} if fields.get("$PORT_ENABLE") else {}

    def _set_group(self, group: MulticastGroup) -> None:
        nodes, groups = self._info.table_get("$pre.node"), self._info.table_get("$pre.mgid")
        data_tuple, key_tuple = self._client.DataTuple, self._client.KeyTuple
        ids = [rid or flood_node(group.group) for rid in group.ports]
        for node, (rid, numbers) in zip(ids, group.ports.items(), strict=True):
            fields = [
                data_tuple("$MULTICAST_RID", rid),
                data_tuple("$MULTICAST_LAG_ID", int_arr_val=[]),
                data_tuple("$DEV_PORT", int_arr_val=numbers),
            ]
            key = nodes.make_key([key_tuple("$MULTICAST_NODE_ID", node)])
            nodes.entry_add_or_mod(self._target, [key], [nodes.make_data(fields)])
        fields = [
            data_tuple("$MULTICAST_NODE_ID", int_arr_val=ids),
            data_tuple("$MULTICAST_NODE_L1_XID_VALID", bool_arr_val=[False] * len(ids)),
            data_tuple("$MULTICAST_NODE_L1_XID", int_arr_val=[0] * len(ids)),
        ]
        key = groups.make_key([key_tuple("$MGID", group.group)])
        groups.entry_add_or_mod(self._target, [key], [groups.make_data(fields)])


def _same_request(operation: Operation) -> tuple[str, ...]:
    return (type(operation).__name__, operation.table if isinstance(operation, TableEntry) else "")


def load_client() -> Any:
    """Return the SDE's client module; ConfigurationError names its source."""
    try:
        return importlib.import_module("bfrt_grpc.client")
    except ImportError as error:
        raise ConfigurationError(
            "bfrt_grpc is not importable: it comes with the SDE; add $SDE_INSTALL/lib/python3.*/site-packages/tofino "
            "to PYTHONPATH and install what it requires: pip install grpcio protobuf googleapis-common-protos "
            f"({error})"
        ) from error
