"""Commands of simple_switch_CLI over a switch of the P4 model: those the control plane emits, with their syntax."""

from typing import Any

from thc_p4_model.switch import Switch


def run(commands: str, switch: Switch) -> None:
    nodes: list[tuple[int, list[int]]] = []
    groups: dict[int, list[tuple[int, int]]] = {}
    for line in commands.splitlines():
        name, *arguments = line.split()
        match name:
            case "table_clear":
                (table,) = arguments
                switch.table_clear(table)
            case "table_set_default":
                table, action, *params = arguments
                switch.table_set_default(table, action, [int(param, 0) for param in params])
            case "table_add":
                _table_add(switch, arguments)
            case "register_reset":
                (register,) = arguments
                switch.register_clear(register)
            case "register_write":
                register, index, value = arguments
                switch.register_write(register, int(index), int(value))
            case "mc_mgrp_create":
                (group,) = arguments
                groups[int(group)] = []
            case "mc_node_create":
                rid, *ports = arguments
                nodes.append((int(rid), [int(port) for port in ports]))
            case "mc_node_associate":
                group, handle = arguments
                rid, ports = nodes[int(handle)]
                groups[int(group)] += [(port, rid) for port in ports]
                switch.multicast_group_set(int(group), groups[int(group)])
            case _:
                raise AssertionError(f"simple_switch_CLI has no {name}")


def _table_add(switch: Switch, arguments: list[str]) -> None:
    table, action, *rest = arguments
    arrow = rest.index("=>")
    info = switch._instances[0].table_infos[table]
    params = rest[arrow + 1 :]
    is_prioritized = any(key.match_kind in ("ternary", "range") for key in info.keys)
    priority = int(params.pop()) if is_prioritized else None
    switch.table_add(
        table, [_match(text) for text in rest[:arrow]], action, [int(each, 0) for each in params], priority
    )


def _match(text: str) -> Any:
    for separator in ("&&&", "->", "/"):
        if separator in text:
            first, second = text.split(separator)
            return int(first, 0), int(second, 0)
    return int(text, 0)
