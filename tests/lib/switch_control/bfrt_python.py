"""BFRT Python, as bfshell offers it, over a switch of the P4 model.

Names and signatures are taken from bfrtcli.py in the SDE (open-p4studio): a tree of nodes by control-plane name,
methods per action whose arguments are the keys, their `_mask`, `_p_length`, `_start` and `_end`, then the action's
parameters. An unknown name, an argument too much or one missing is an error, there as here.
"""

import re
from collections.abc import Callable
from typing import Any

from thc_p4_model.control import TableEntry
from thc_p4_model.interfaces import TableInfo
from thc_p4_model.switch import Switch

#: Suffixes of the two arguments of a key.
ARGUMENTS = {"exact": ("",), "ternary": ("", "_mask"), "lpm": ("", "_p_length"), "range": ("_start", "_end")}
PORT_FIELDS = {"DEV_PORT", "SPEED", "FEC", "AUTO_NEGOTIATION", "LOOPBACK_MODE", "PORT_ENABLE"}


class Bfrt:
    """The object `bfrt` of a script."""

    def __init__(self, switch: Switch, program: str) -> None:
        self._switch, self._program = switch, program
        self.ports: dict[int, dict[str, Any]] = {}
        self.recirculation: set[int] = set()
        self.pre = Pre(switch)
        self.port = Namespace(port=PortTable(self.ports))
        self.tf1 = Namespace(pktgen=Namespace(port_cfg=RecirculationTable(self.recirculation)))
        self.is_batch = False

    def __getattr__(self, name: str) -> Any:
        if name != self._program:
            raise AttributeError(f"the switch runs {self._program}, not {name}")
        return Namespace(pipe=P4Node(self._switch, ""))

    def batch_begin(self) -> None:
        assert not self.is_batch
        self.is_batch = True

    def batch_end(self) -> None:
        assert self.is_batch
        self.is_batch = False

    def complete_operations(self) -> None:
        assert not self.is_batch


def run(script: str, bfrt: Bfrt) -> str:
    """Run a script as bfshell does, functions and comprehensions without its names; return its output."""
    printed: list[str] = []
    exec(compile(script, "thc.py", "exec"), {"print": printed.append}, {"bfrt": bfrt})
    return "".join(f"{line}\n" for line in printed)


class Namespace:
    def __init__(self, **children: Any) -> None:
        self.__dict__.update(children)


class P4Node:
    """A control, table, register or counter of the program."""

    def __init__(self, switch: Switch, name: str) -> None:
        self._switch, self._name = switch, name

    def __getattr__(self, child: str) -> Any:
        name = f"{self._name}.{child}".removeprefix(".")
        infos = self._switch._instances[0].table_infos
        if name in infos:
            return P4Table(self._switch, infos[name])
        if name in self._switch.register_names():
            return P4Register(self._switch, name)
        if name in self._switch.counter_names():
            return P4Counter(self._switch, name)
        known = [*infos, *self._switch.register_names(), *self._switch.counter_names()]
        if not any(each.startswith(f"{name}.") for each in known):
            raise AttributeError(f"the program has no {name}")
        return P4Node(self._switch, name)


class P4Table:
    def __init__(self, switch: Switch, info: TableInfo) -> None:
        self._switch, self._info = switch, info

    def __getattr__(self, method: str) -> Callable[..., None]:
        for prefix, call in (("add_with_", self._add), ("set_default_with_", self._set_default)):
            action = method.removeprefix(prefix)
            if method != action and any(each.name.endswith(f".{action}") for each in self._info.actions):
                return lambda **arguments: call(action, arguments)
        raise AttributeError(f"table {self._info.name} has no {method}")

    def clear(self) -> None:
        self._switch.table_clear(self._info.name)

    def get(self, *, regex: bool = False, print_ents: bool = True, from_hw: bool = False, **keys: Any) -> Any:
        assert not print_ents
        entries = self._switch.table_entries(self._info.name)
        if not regex:
            assert from_hw, "counts that the driver remembers are old"
            wanted = self._match(keys)
            assert not keys
            return next(Entry(self._switch, self._info, entry) for entry in entries if entry.match == wanted)
        return [
            Entry(self._switch, self._info, entry)
            for entry in entries
            if all(re.search(pattern, self._printed(entry, name)) for name, pattern in keys.items())
        ]

    def _printed(self, entry: TableEntry, name: str) -> str:
        """Keys print as hexadecimal digits of their width."""
        width = next(key.width for key in self._info.keys if key.name == name)
        found = entry.match[name]
        return f"0x{found[0] if isinstance(found, tuple) else found:0{width // 4}X}"

    def _add(self, action: str, arguments: dict[str, Any]) -> None:
        match = self._match(arguments)
        priority = arguments.pop("MATCH_PRIORITY", None)
        self._switch.table_add(self._info.name, match, action, arguments, priority)

    def _set_default(self, action: str, arguments: dict[str, Any]) -> None:
        self._switch.table_set_default(self._info.name, action, arguments)

    def _match(self, arguments: dict[str, Any]) -> dict[str, Any]:
        match = {}
        for key in self._info.keys:
            values = tuple(arguments.pop(f"{key.name}{suffix}") for suffix in ARGUMENTS[key.match_kind])
            match[key.name] = values if len(values) > 1 else values[0]
        return match


class Entry:
    """An entry that `get` found."""

    def __init__(self, switch: Switch, info: TableInfo, entry: TableEntry) -> None:
        self._switch, self._info, self._entry = switch, info, entry
        self.key = {name.encode(): match for name, match in entry.match.items()}
        self.action = entry.action

    def remove(self) -> None:
        self._switch.table_delete(self._info.name, self._entry.match, self._entry.priority)

    def raw(self) -> dict[str, Any]:
        return {"data": {"$COUNTER_SPEC_PKTS": self._entry.packets}}


class P4Register:
    def __init__(self, switch: Switch, name: str) -> None:
        self._switch, self._name = switch, name

    def clear(self) -> None:
        self._switch.register_clear(self._name)

    def mod(self, *, REGISTER_INDEX: int, **fields: int) -> None:  # noqa: N803
        now = self._switch.register_read(self._name, REGISTER_INDEX)
        assert set(fields) == (set(now) if isinstance(now, dict) else {"f1"})
        self._switch.register_write(self._name, REGISTER_INDEX, fields if isinstance(now, dict) else fields["f1"])

    def get(self, *, REGISTER_INDEX: int, from_hw: bool, print_ents: bool) -> Any:  # noqa: N803
        assert from_hw
        assert not print_ents
        value = self._switch.register_read(self._name, REGISTER_INDEX)
        fields = value if isinstance(value, dict) else {"f1": value}
        data = {f"{self._name}.{field}": [each] for field, each in fields.items()}
        return Namespace(raw=lambda: {"data": data})


class P4Counter:
    def __init__(self, switch: Switch, name: str) -> None:
        self._switch, self._name = switch, name

    def get(self, *, COUNTER_INDEX: int, from_hw: bool, print_ents: bool) -> Any:  # noqa: N803
        assert from_hw
        assert not print_ents
        packets = self._switch.counter_read(self._name, COUNTER_INDEX).packets
        return Namespace(raw=lambda: {"data": {"$COUNTER_SPEC_PKTS": packets}})


class Pushed:
    """The result of `entry(...)`."""

    def __init__(self, push: Callable[[], None]) -> None:
        self.push = push


class Pre:
    """Multicast: nodes, and their groups."""

    def __init__(self, switch: Switch) -> None:
        nodes: dict[int, tuple[int, list[int]]] = {}

        class Nodes:
            @staticmethod
            def entry(
                *,
                MULTICAST_NODE_ID: int,  # noqa: N803
                MULTICAST_RID: int,  # noqa: N803
                MULTICAST_LAG_ID: list[int],  # noqa: N803
                DEV_PORT: list[int],  # noqa: N803
            ) -> Pushed:
                assert MULTICAST_LAG_ID == []
                return Pushed(lambda: nodes.update({MULTICAST_NODE_ID: (MULTICAST_RID, DEV_PORT)}))

        class Groups:
            @staticmethod
            def entry(
                *,
                MGID: int,  # noqa: N803
                MULTICAST_NODE_ID: list[int],  # noqa: N803
                MULTICAST_NODE_L1_XID_VALID: list[bool],  # noqa: N803
                MULTICAST_NODE_L1_XID: list[int],  # noqa: N803
            ) -> Pushed:
                assert len(MULTICAST_NODE_ID) == len(MULTICAST_NODE_L1_XID_VALID) == len(MULTICAST_NODE_L1_XID)
                assert not any(MULTICAST_NODE_L1_XID_VALID)
                copies = [(port, nodes[node][0]) for node in MULTICAST_NODE_ID for port in nodes[node][1]]
                return Pushed(lambda: switch.multicast_group_set(MGID, copies))

        self.node = Nodes()
        self.mgid = Groups()


class PortTable:
    """`bfrt.port.port`. `flaps`: ports in the order they were set, which takes them down."""

    def __init__(self, ports: dict[int, dict[str, Any]]) -> None:
        self._ports = ports
        self.flaps: list[int] = []

    def entry(self, **fields: Any) -> Pushed:
        assert set(fields) <= PORT_FIELDS
        number = fields.pop("DEV_PORT")

        def push() -> None:
            self.flaps.append(number)
            self._ports[number] = fields

        return Pushed(push)

    def get(self, *, regex: bool, print_ents: bool) -> list[Namespace]:
        assert regex
        assert not print_ents
        return [
            Namespace(key={b"$DEV_PORT": number}, data={f"${name}".encode(): value for name, value in fields.items()})
            for number, fields in self._ports.items()
        ]


class RecirculationTable:
    """`bfrt.tf1.pktgen.port_cfg`."""

    def __init__(self, ports: set[int]) -> None:
        self._ports = ports

    def mod(self, *, dev_port: int, recirculation_enable: bool) -> None:
        assert recirculation_enable
        self._ports.add(dev_port)
