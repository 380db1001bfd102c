"""STF, the packet-test format of p4c: one command per line, `#` starts a comment.

    add TABLE [PRIORITY] KEY:VALUE ... ACTION(PARAM:VALUE, ...) [= ID]   larger priorities win, as p4c's tests have it
    setdefault TABLE ACTION(PARAM:VALUE, ...)
    remove all | ID
    packet PORT HEX ...             send a frame
    expect PORT [HEX ... [$]]       a frame of that port, in order: `*` is any digit, more bytes may follow unless `$`
                                    ends it; without data: any frames at all
    no_packet                       nothing may have been sent that was not expected so far
    wait                            nothing to wait for here: every packet has run to its end
    check_counter NAME[(INDEX)] [packets|bytes] [CONDITION NUMBER]
    mc_mgrp_create GROUP, mc_node_create RID PORT ..., mc_node_associate GROUP NODE, mirroring_add SESSION PORT,
    mirroring_add_mc SESSION GROUP, register_read NAME INDEX, register_write NAME INDEX VALUE, register_reset NAME
                                    as in simple_switch_CLI; nodes number from 0
    check_register NAME INDEX CONDITION NUMBER, set_loopback PORT       not in p4c

Values are decimal, 0x..., 0b... (`*`: any digit), VALUE/PREFIX for lpm keys and LOW->HIGH for range keys. At the end
every expected frame must have been seen, and no other.
"""

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from thc_p4_model.architectures import TnaSwitch
from thc_p4_model.errors import ControlError
from thc_p4_model.replication import Node
from thc_p4_model.switch import Switch

TOP_PRIORITY = 1 << 20
"""STF's larger priorities win, the control plane's smaller ones."""
CONDITIONS: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CALL = r"(?P<action>[\w.$\[\]]+)\s*\((?P<params>[^)]*)\)"
_ADD = re.compile(rf"(?P<table>\S+)\s+((?P<priority>\d+)\s+)?(?P<keys>(\S+:\S+\s+)*?){_CALL}\s*(=\s*(?P<id>\w+))?")
_SETDEFAULT = re.compile(rf"(?P<table>\S+)\s+{_CALL}")
_CHECK_COUNTER = re.compile(
    r"(?P<name>[\w.]+)(\((?P<index>\w+)\))?(\s+(?P<unit>packets|bytes))?(\s*(?P<condition>[=!<>]+)\s*(?P<number>\w+))?"
)


class StfError(Exception):
    """A test failed or is malformed. The message names the place."""

    def __init__(self, path: Path, line: int, message: str) -> None:
        super().__init__(f"{path}:{line}: {message}")


def run_stf(switch: Switch, path: Path) -> int:
    """Run a test; the number of frames sent. Raises StfError at the first thing that is wrong."""
    run = _Run(switch, path)
    number = 0
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        command, _, rest = line.partition("#")[0].strip().partition(" ")
        if command:
            run.command(number, command.lower(), rest.strip())
    run.finish(number)
    return run.packets


class _Run:
    """A test in progress."""

    def __init__(self, switch: Switch, path: Path) -> None:
        self.packets = 0
        self._switch = switch
        self._path = path
        self._line = 0
        self._entries: dict[str, tuple[str, dict[str, Any], int | None]] = {}
        self._nodes: list[tuple[int, list[int]]] = []
        self._expected: dict[int, list[tuple[int, str]]] = defaultdict(list)  # port to (line, digits)
        self._anything: set[int] = set()
        self._sent: dict[int, list[bytes]] = defaultdict(list)

    def command(self, line: int, command: str, rest: str) -> None:
        """Run one line."""
        self._line = line
        handler = getattr(self, f"_do_{command}", None)
        if handler is None:
            raise self._error(f"unknown command {command}")
        try:
            handler(rest)
        except (ControlError, ValueError) as error:
            raise self._error(str(error)) from error

    def finish(self, line: int) -> None:
        """Compare sent packets with the expected ones."""
        self._line = line
        for port in sorted(set(self._expected) | set(self._sent)):
            if port not in self._anything:
                self._compare(port, self._expected[port], self._sent[port])
        missing = [port for port in self._anything if not self._sent[port]]
        if missing:
            raise self._error(f"no frame on port {missing[0]}")

    def _compare(self, port: int, expected: list[tuple[int, str]], sent: list[bytes]) -> None:
        for (line, digits), frame in zip(expected, sent, strict=False):
            if not _frame_matches(digits, frame.hex()):
                raise StfError(self._path, line, f"port {port} sent {frame.hex()}")
        if len(expected) > len(sent):
            line, digits = expected[len(sent)]
            raise StfError(self._path, line, f"port {port} did not send {digits}")
        if len(sent) > len(expected):
            raise self._error(f"port {port} sent an unexpected frame {sent[len(expected)].hex()}")

    def _error(self, message: str) -> StfError:
        return StfError(self._path, self._line, message)

    # Packets.

    def _do_packet(self, rest: str) -> None:
        port, _, data = rest.partition(" ")
        self.packets += 1
        for out_port, frame in self._switch.process(int(port), bytes.fromhex(data)):
            self._sent[out_port].append(frame)

    def _do_expect(self, rest: str) -> None:
        port, _, data = rest.partition(" ")
        digits = "".join(data.lower().split())
        if digits:
            self._expected[int(port)].append((self._line, digits))
        else:
            self._anything.add(int(port))

    def _do_no_packet(self, _: str) -> None:
        for port, sent in self._sent.items():
            if len(sent) > len(self._expected[port]) and port not in self._anything:
                raise self._error(f"port {port} sent an unexpected frame {sent[-1].hex()}")

    def _do_wait(self, _: str) -> None:
        """Every packet has run to its end already."""

    # Tables.

    def _do_add(self, rest: str) -> None:
        parts = self._parse(_ADD, rest)
        match = {_indexed(name): _match_value(value) for name, value in _pairs(parts["keys"])}
        priority = TOP_PRIORITY - int(parts["priority"] or 0)
        self._switch.table_add(parts["table"], match, parts["action"], _params(parts["params"]), priority)
        if parts["id"]:
            self._entries[parts["id"]] = parts["table"], match, priority

    def _do_setdefault(self, rest: str) -> None:
        parts = self._parse(_SETDEFAULT, rest)
        self._switch.table_set_default(parts["table"], parts["action"], _params(parts["params"]))

    def _do_remove(self, rest: str) -> None:
        if rest != "all":
            if rest not in self._entries:
                raise self._error(f"no entry was added as {rest}")
            self._switch.table_delete(*self._entries.pop(rest))
            return
        for table in self._switch.table_names():
            if self._switch.table_is_mutable(table):
                self._switch.table_clear(table)

    # State.

    def _do_check_counter(self, rest: str) -> None:
        parts = self._parse(_CHECK_COUNTER, rest)
        count = self._switch.counter_read(parts["name"], int(parts["index"] or "0", 0))
        value = count.bytes if parts["unit"] == "bytes" else count.packets
        if parts["condition"]:
            self._check(parts["name"], value, parts["condition"], parts["number"])

    def _do_check_register(self, rest: str) -> None:
        name, index, condition, number = rest.split()
        self._check(name, self._switch.register_read(name, int(index, 0)), condition, number)

    def _check(self, name: str, value: int, condition: str, number: str) -> None:
        if condition not in CONDITIONS:
            raise self._error(f"unknown condition {condition}")
        if not CONDITIONS[condition](value, int(number, 0)):
            raise self._error(f"{name} is {value}, not {condition} {number}")

    def _do_register_read(self, rest: str) -> None:
        name, index = rest.split()
        self._switch.register_read(name, int(index, 0))

    def _do_register_write(self, rest: str) -> None:
        name, index, value = rest.split()
        self._switch.register_write(name, int(index, 0), int(value, 0))

    def _do_register_reset(self, rest: str) -> None:
        self._switch.register_clear(rest)

    # Replication and ports.

    def _do_mc_mgrp_create(self, rest: str) -> None:
        self._switch.multicast_group_create(int(rest, 0), [])

    def _do_mc_node_create(self, rest: str) -> None:
        rid, *ports = [int(word, 0) for word in rest.split()]
        self._nodes.append((rid, ports))

    def _do_mc_node_associate(self, rest: str) -> None:
        group, node = (int(word, 0) for word in rest.split())
        rid, ports = self._nodes[node]
        nodes = [*self._switch.multicast_groups().get(group, ()), *(Node(port, rid) for port in ports)]
        self._switch.multicast_group_set(group, nodes)

    def _do_mirroring_add(self, rest: str) -> None:
        session, port = (int(word, 0) for word in rest.split())
        self._switch.mirror_session_set(session, port=port)

    def _do_mirroring_add_mc(self, rest: str) -> None:
        session, group = (int(word, 0) for word in rest.split())
        self._switch.mirror_session_set(session, group=group)

    def _do_mirroring_get(self, rest: str) -> None:
        if self._switch.replication.mirror(int(rest, 0)) is None:
            raise self._error(f"there is no mirror session {rest}")

    def _do_set_loopback(self, rest: str) -> None:
        if not isinstance(self._switch, TnaSwitch):
            raise self._error("set_loopback is for TNA")
        self._switch.set_loopback(int(rest, 0))

    def _parse(self, pattern: re.Pattern[str], text: str) -> dict[str, Any]:
        match = pattern.fullmatch(text)
        if match is None:
            raise self._error(f"cannot read {text!r}")
        return match.groupdict()


def _frame_matches(expected: str, sent: str) -> bool:
    """Whether a frame, in hex digits, is the expected one."""
    digits = expected.removesuffix("$")
    if len(sent) < len(digits) or (digits is not expected and len(sent) > len(digits)):
        return False
    return all(want in ("*", got) for want, got in zip(digits, sent, strict=False))


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (word.partition(":") for word in text.split())]


def _params(text: str) -> dict[str, int]:
    pairs = _pairs(" ".join(item.replace(" ", "") for item in text.split(",")))
    return {name: int(value, 0) for name, value in pairs}


def _indexed(name: str) -> str:
    """`extra$0.h` is how STF writes `extra[0].h`."""
    return re.sub(r"\$(\d+)", r"[\1]", name)


def _match_value(text: str) -> Any:
    if "->" in text:
        low, _, high = text.partition("->")
        return int(low, 0), int(high, 0)
    if "/" in text:
        value, _, length = text.partition("/")
        return int(value, 0), int(length, 0)
    if "*" not in text:
        return int(text, 0)
    base, digits = {"0x": (16, "f"), "0b": (2, "1")}.get(text[:2].lower(), (0, ""))
    if not base:
        raise ValueError(f"{text}: * is for 0x and 0b values")
    mask = "".join("0" if digit == "*" else digits for digit in text[2:])
    return int(text[2:].replace("*", "0"), base), int(mask, base)
