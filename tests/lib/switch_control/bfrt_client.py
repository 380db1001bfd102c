"""`bfrt_grpc.client` of the SDE, as far as the control plane uses it, over a switch of the P4 model.

Names, signatures and results are taken from client.py in the SDE (open-p4studio): tables by full name, keys and
data made by the table they are for, which knows its fields; writes of lists; reads that yield (data, key).
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

from thc_p4_model.control import TableEntry
from thc_p4_model.errors import ControlError
from thc_p4_model.switch import Switch

PRE_NODE = {"$MULTICAST_RID", "$MULTICAST_LAG_ID", "$DEV_PORT"}
PRE_GROUP = {"$MULTICAST_NODE_ID", "$MULTICAST_NODE_L1_XID_VALID", "$MULTICAST_NODE_L1_XID"}
PORT = {"$SPEED", "$FEC", "$AUTO_NEGOTIATION", "$LOOPBACK_MODE", "$PORT_ENABLE"}


class BfruntimeRpcException(Exception):  # noqa: N818
    """The server refused."""


class RpcError(Exception):
    """gRPC's own, which reads raise while they are iterated."""


@dataclass
class Target:
    device_id: int = 0
    pipe_id: int = 0xFFFF


@dataclass
class KeyTuple:
    name: str
    value: Any = None
    mask: Any = None
    prefix_len: Any = None
    low: Any = None
    high: Any = None

    def match(self) -> Any:
        if self.mask is not None:
            return (self.value, self.mask)
        if self.prefix_len is not None:
            return (self.value, self.prefix_len)
        return self.value if self.low is None else (self.low, self.high)


@dataclass
class DataTuple:
    name: str
    val: Any = None
    float_val: Any = None
    str_val: Any = None
    int_arr_val: Any = None
    bool_arr_val: Any = None
    bool_val: Any = None

    def value(self) -> Any:
        fields = (self.val, self.str_val, self.int_arr_val, self.bool_arr_val, self.bool_val)
        return next(field for field in fields if field is not None)


@dataclass
class Key:
    fields: dict[str, KeyTuple]

    def to_dict(self) -> dict[str, dict[str, Any]]:
        return {name: {"value": field.value} for name, field in self.fields.items()}


@dataclass
class Data:
    fields: dict[str, Any]
    action: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return self.fields | {"action_name": self.action, "is_default_entry": False}


class Table:
    keys: set[str]

    def make_key(self, fields: Sequence[KeyTuple]) -> Key:
        if {field.name for field in fields} != self.keys:
            raise KeyError(f"keys are {self.keys}")
        return Key({field.name: field for field in fields})

    def make_data(self, fields: Sequence[DataTuple], action: str | None = None) -> Data:
        return Data({field.name: field.value() for field in fields}, action)


class MatchTable(Table):
    def __init__(self, switch: Switch, name: str) -> None:
        self.switch, self.name = switch, name
        self.info = switch._instances[0].table_infos[name]
        self.is_prioritized = any(key.match_kind in ("ternary", "range") for key in self.info.keys)
        self.keys = {key.name for key in self.info.keys} | ({"$MATCH_PRIORITY"} if self.is_prioritized else set())

    def make_data(self, fields: Sequence[DataTuple], action: str | None = None) -> Data:
        known = {each.name: [param.name for param in each.params] for each in self.info.actions}
        if action not in known or sorted(known[action]) != sorted(field.name for field in fields):
            raise KeyError(f"{action} with {[field.name for field in fields]} is none of {known}")
        return super().make_data(fields, action)

    def entry_add_or_mod(self, _: Target, keys: Sequence[Key], data: Sequence[Data]) -> None:
        for key, each in zip(keys, data, strict=True):
            match, priority = self._match(key)
            assert each.action is not None
            with contextlib.suppress(ControlError):  # it is new
                self.switch.table_delete(self.name, match, priority)
            try:
                self.switch.table_add(self.name, match, each.action, each.fields, priority)
            except ControlError as error:
                raise BfruntimeRpcException(str(error)) from error

    def default_entry_set(self, _: Target, data: Data) -> None:
        assert data.action is not None
        self.switch.table_set_default(self.name, data.action, data.fields)

    def entry_del(self, _: Target, keys: Sequence[Key] | None = None) -> None:
        if keys is None:
            self.switch.table_clear(self.name)
        for key in keys or ():
            self.switch.table_delete(self.name, *self._match(key))

    def entry_get(self, _: Target, keys: Sequence[Key] | None, flags: dict[str, bool]) -> Iterator[tuple[Data, Key]]:
        wanted = [self._match(key) for key in keys or ()]
        for entry in self.switch.table_entries(self.name):
            if keys is None or (entry.match, entry.priority if self.is_prioritized else None) in wanted:
                packets = entry.packets if flags["from_hw"] else 0
                yield Data(entry.params | {"$COUNTER_SPEC_PKTS": packets}, entry.action), self._key(entry)

    def _match(self, key: Key) -> tuple[dict[str, Any], int | None]:
        fields = dict(key.fields)
        priority = fields.pop("$MATCH_PRIORITY").value if self.is_prioritized else None
        return {name: field.match() for name, field in fields.items()}, priority

    def _key(self, entry: TableEntry) -> Key:
        fields = {}
        for info in self.info.keys:
            found = entry.match[info.name]
            match info.match_kind:
                case "ternary":
                    fields[info.name] = KeyTuple(info.name, found[0], mask=found[1])
                case "lpm":
                    fields[info.name] = KeyTuple(info.name, found[0], prefix_len=found[1])
                case "range":
                    fields[info.name] = KeyTuple(info.name, low=found[0], high=found[1])
                case _:
                    fields[info.name] = KeyTuple(info.name, found)
        if self.is_prioritized:
            fields["$MATCH_PRIORITY"] = KeyTuple("$MATCH_PRIORITY", entry.priority)
        return Key(fields)


class RegisterTable(Table):
    """A register: an element is a list of one value per pipe."""

    def __init__(self, switch: Switch, name: str) -> None:
        self.switch, self.name, self.keys = switch, name, {"$REGISTER_INDEX"}

    def entry_del(self, _: Target, keys: None = None) -> None:
        assert keys is None
        self.switch.register_clear(self.name)

    def entry_mod(self, _: Target, keys: Sequence[Key], data: Sequence[Data]) -> None:
        for key, each in zip(keys, data, strict=True):
            index = key.fields["$REGISTER_INDEX"].value
            now = self.switch.register_read(self.name, index)
            fields = {name.removeprefix(f"{self.name}."): value for name, value in each.fields.items()}
            assert set(fields) == (set(now) if isinstance(now, dict) else {"f1"})
            self.switch.register_write(self.name, index, fields if isinstance(now, dict) else fields["f1"])

    def entry_get(self, _: Target, keys: Sequence[Key], flags: dict[str, bool]) -> Iterator[tuple[Data, Key]]:
        assert flags["from_hw"]
        for key in keys:
            value = self.switch.register_read(self.name, key.fields["$REGISTER_INDEX"].value)
            fields = value if isinstance(value, dict) else {"f1": value}
            yield Data({f"{self.name}.{field}": [each] for field, each in fields.items()}), key


class CounterTable(Table):
    def __init__(self, switch: Switch, name: str) -> None:
        self.switch, self.name, self.keys = switch, name, {"$COUNTER_INDEX"}

    def entry_get(self, _: Target, keys: Sequence[Key], flags: dict[str, bool]) -> Iterator[tuple[Data, Key]]:
        assert flags["from_hw"]
        for key in keys:
            count = self.switch.counter_read(self.name, key.fields["$COUNTER_INDEX"].value)
            yield Data({"$COUNTER_SPEC_PKTS": count.packets}), key


class FixedTable(Table):
    """A table of the chip: keeps its rows. `writes`: keys, in order."""

    def __init__(self, key: str, fields: set[str]) -> None:
        self.keys, self.fields = {key}, fields
        self.rows: dict[int, dict[str, Any]] = {}
        self.writes: list[int] = []

    def entry_add_or_mod(self, _: Target, keys: Sequence[Key], data: Sequence[Data]) -> None:
        for key, each in zip(keys, data, strict=True):
            assert set(each.fields) <= self.fields
            (field,) = key.fields.values()
            self.rows[field.value] = each.fields
            self.writes.append(field.value)

    entry_mod = entry_add_or_mod

    def entry_get(self, _: Target, keys: Sequence[Key], flags: dict[str, bool]) -> Iterator[tuple[Data, Key]]:
        assert not flags["from_hw"]
        for key in keys:
            (field,) = key.fields.values()
            if field.value not in self.rows:
                raise RpcError("Object not found")
            yield Data(self.rows[field.value]), key


class Server:
    """A bf_switchd: the program, and the chip's own tables."""

    def __init__(self, switch: Switch, program: str, address: str) -> None:
        self.switch, self.program, self.address = switch, program, address
        self.chip = {
            "$pre.node": FixedTable("$MULTICAST_NODE_ID", PRE_NODE),
            "$pre.mgid": FixedTable("$MGID", PRE_GROUP),
            "$PORT": FixedTable("$DEV_PORT", PORT),
            "tf1.pktgen.port_cfg": FixedTable("dev_port", {"recirculation_enable"}),
        }

    def table_get(self, name: str) -> Table:
        if name in self.chip:
            return self.chip[name]
        if name in self.switch.register_names():
            return RegisterTable(self.switch, name)
        if name in self.switch.counter_names():
            return CounterTable(self.switch, name)
        return MatchTable(self.switch, name)

    def groups(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Multicast groups: (port, replication id) of the copies."""
        nodes = self.chip["$pre.node"].rows
        return {
            group: tuple(
                (port, nodes[node]["$MULTICAST_RID"])
                for node in fields["$MULTICAST_NODE_ID"]
                for port in nodes[node]["$DEV_PORT"]
            )
            for group, fields in self.chip["$pre.mgid"].rows.items()
        }

    def module(self) -> ModuleType:
        """Return the client module that reaches this server."""
        server = self

        class ClientInterface:
            def __init__(self, grpc_addr: str, client_id: int, device_id: int) -> None:
                if (grpc_addr, client_id, device_id) != (server.address, 0, 0):
                    raise BfruntimeRpcException(f"nothing listens at {grpc_addr}")

            def bind_pipeline_config(self, program: str) -> None:
                if program != server.program:
                    raise BfruntimeRpcException(f"{program} is not loaded")

            def bfrt_info_get(self, program: str) -> Server:
                assert program == server.program
                return server

        module = ModuleType("bfrt_grpc.client")
        module.grpc = SimpleNamespace(RpcError=RpcError)  # type: ignore[attr-defined]
        for each in (ClientInterface, Target, KeyTuple, DataTuple, BfruntimeRpcException):
            setattr(module, each.__name__, each)
        return module
