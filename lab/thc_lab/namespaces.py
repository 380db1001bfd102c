"""Network namespaces of this machine, with cables (veth pairs) between them.

Namespaces of class Namespaces end with the process that made them, and are named after it.
"""

import array
import contextlib
import ctypes
import fcntl
import os
import re
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from byteps_thc._base.errors import ConfigurationError, ThcError, TransportError

FOLDER = Path("/run/netns")
_TIMEOUT_S = 20.0
_CLONE_NEWNET = 0x40000000
_SIOCETHTOOL = 0x8946
# Commands of linux/ethtool.h that set one feature, in an order in which none depends on a later one: TSO, GSO, GRO,
# receive checksums, transmit checksums.
_SET_COMMANDS = (0x1F, 0x24, 0x2C, 0x15, 0x17)


#: Fields of /proc/PID/stat behind the command's name: the state, and the process's start in clock ticks.
_STATE, _START = 0, 19

#: Number of the process; when it was started, because a number is given again to a later process; and which host or
#: container numbers it so, because containers may share namespaces' names.
_NAME = re.compile(r"thc(?P<pid>\d{1,9})\.(?P<start>\d+)\.(?P<pids>\d+)-.+")


@dataclass(frozen=True)
class CableEnd:
    """One end of a veth pair."""

    host: str
    interface: str
    mac: str
    #: with prefix length, such as 10.0.0.1/24; empty: none, because DPDK or a switch answers for it
    address: str = ""


@dataclass(frozen=True)
class Cable:
    """A veth pair between two namespaces, both ends up. Only in namespaces."""

    a: CableEnd
    b: CableEnd
    #: leave checksums and segmentation to the interfaces; False where DPDK or a switch in software gets the frames
    offloads: bool = False
    mtu_bytes: int = 1500


class Namespaces:
    """A context manager that removes the namespaces made meanwhile, and the cables between them.

    Namespaces of killed processes are removed when the context is entered. Raises ConfigurationError when this process
    may not make any, or has no `ip` command.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._prefix = name_prefix()
        if (reason := why_not()) is not None:
            raise ConfigurationError(reason)

    def __enter__(self) -> "Namespaces":
        remove_leftovers()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, name: str) -> str:
        """Make a namespace, named after `name` and this process; returns its name."""
        full = self._prefix + name
        self._stack.callback(delete, full)  # before: a signal may come while it is made
        add(full)
        return full


def name_prefix() -> str:
    """The first letters of the names of this process's namespaces."""
    return f"thc{os.getpid()}.{_start_ticks()}.{_pid_namespace()}-"


def find_leftovers(folder: Path = FOLDER) -> list[str]:
    """Return the names of namespaces whose process is gone."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:  # this host never had any
        return []
    pids = _pid_namespace()
    ours = [match for name in names if (match := _NAME.fullmatch(name)) and match["pids"] == pids]
    return [match[0] for match in ours if not _alive(match["pid"], match["start"])]


def remove_leftovers() -> None:
    """Remove the namespaces of find_leftovers(). Needs root."""
    for name in find_leftovers():
        delete(name)


def delete(name: str) -> None:
    """Remove a namespace if possible; another process may be removing the same leftovers."""
    with contextlib.suppress(ThcError):
        remove(name)


def _alive(pid: str, start_ticks: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's, which /proc may hide
        pass
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    fields = stat.rpartition(")")[2].split()
    return fields[_STATE] not in "ZX" and start_ticks == fields[_START]


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)


def _start_ticks() -> str:
    return Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[_START]


def why_not() -> str | None:
    """Say why this process can make no namespaces; None when it can."""
    if os.geteuid() != 0:
        return "network namespaces need root: run this as root (sudo)"
    if shutil.which("ip") is None:
        return "network namespaces need the `ip` command: apt-get install iproute2"
    return None


def is_there(namespace: str) -> bool:
    """Whether a namespace of that name exists."""
    return (FOLDER / namespace).exists()


def add(namespace: str) -> None:
    """Make a namespace. ConfigurationError with the command that failed."""
    _run("ip", "netns", "add", namespace)
    _ip(namespace, "link", "set", "dev", "lo", "up")


def remove(namespace: str) -> None:
    """Remove a namespace's name, if it exists; its cables end with the last process inside."""
    if is_there(namespace):
        _run("ip", "netns", "del", namespace)


def connect(cable: Cable) -> None:
    """Lay a cable and bring both ends up; a half-made one is made anew. ConfigurationError as of add()."""
    a, b, mtu_bytes = cable.a, cable.b, str(cable.mtu_bytes)
    for end in (a, b):
        if has(end):
            _ip(end.host, "link", "delete", "dev", end.interface)
    _ip(
        a.host, "link", "add", "name", a.interface, "address", a.mac, "mtu", mtu_bytes, "type", "veth",
        "peer", "name", b.interface, "address", b.mac, "mtu", mtu_bytes, "netns", b.host,
    )  # fmt: skip
    for end in (a, b):
        if end.address:
            _ip(end.host, "address", "add", end.address, "dev", end.interface)
        # No IPv6 link-local address: its neighbour discovery would only be flooded.
        _ip(end.host, "link", "set", "dev", end.interface, "addrgenmode", "none", "up")
        if not cable.offloads:
            with inside(end.host):
                disable_offloads(end.interface)


def bridge(namespace: str, interfaces: Sequence[str]) -> None:
    """Connect interfaces of a namespace by a bridge. ConfigurationError as of add()."""
    _ip(namespace, "link", "add", "name", "bridge0", "type", "bridge")
    _ip(namespace, "link", "set", "dev", "bridge0", "addrgenmode", "none", "up")
    for interface in interfaces:
        _ip(namespace, "link", "set", "dev", interface, "master", "bridge0")


def has(end: CableEnd) -> bool:
    """Whether the given end of a cable exists."""
    with inside(end.host):
        return end.interface in {name for _, name in socket.if_nameindex()}


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Move the calling thread; sockets it opens and threads it starts meanwhile stay in the namespace."""
    with Path("/proc/thread-self/ns/net").open("rb") as own, (FOLDER / namespace).open("rb") as other:
        _set_namespace(other)
        try:
            yield
        finally:
            _set_namespace(own)


def command_inside(namespace: str) -> list[str]:
    """The words before a command that run it in a namespace."""
    # Unlike `ip netns exec` and `ip -n` it mounts nothing, which fails where / is no mount point (chroot).
    return ["nsenter", f"--net={FOLDER}/{namespace}"]


def with_its_sysfs(namespace: str, argv: Sequence[str]) -> list[str]:
    """A command that is run in a namespace; with bmv2 in it, it sees that namespace's /sys, too."""
    # simple_switch looks for the state of its interfaces there, and only `ip netns exec` mounts it anew.
    return ["ip", "netns", "exec", namespace, *argv] if "bmv2" in argv else list(argv)


def disable_offloads(interface: str) -> None:
    """Turn off an interface's offloads, as `ethtool -K DEV rx off tx off tso off gso off gro off` does.

    Without this a frame over a veth pair may carry a checksum that is only begun, and several packets may arrive as
    one: a switch would forward both as they are, and the receiver drop them. Do it at both ends of a pair; for
    checksums, the sender's matters. OSError: no such interface, or no CAP_NET_ADMIN.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in _SET_COMMANDS:
            value = array.array("B", struct.pack("II", command, 0))  # struct ethtool_value
            request = struct.pack("16sP16x", interface.encode(), value.buffer_info()[0])  # struct ifreq
            fcntl.ioctl(control, _SIOCETHTOOL, request)


def _set_namespace(namespace: IO[bytes]) -> None:
    # Python has os.setns() from 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
        raise TransportError(f"cannot enter the network namespace: {os.strerror(ctypes.get_errno())}")


def _ip(namespace: str, *arguments: str) -> None:
    _run(*command_inside(namespace), "ip", *arguments)


def _run(*command: str) -> None:
    try:
        finished = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            start_new_session=True,  # Ctrl-C is for this process
        )
    except subprocess.TimeoutExpired:
        raise TransportError(f"`{' '.join(command)}` did not end within {_TIMEOUT_S:g} s") from None
    if finished.returncode != 0:
        raise ConfigurationError(
            f"`{' '.join(command)}` failed: {finished.stderr.strip()}. Network namespaces need root with "
            "CAP_NET_ADMIN and CAP_SYS_ADMIN; containers often lack them"
        )
