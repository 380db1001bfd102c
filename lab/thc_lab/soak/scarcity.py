"""Full disks and memory that has run out, for processes that a test started and for no others."""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Free bytes on a log's disk.
LOG_ROOM_BYTES = 100
_UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]


def may_mount() -> bool:
    """Whether this user may mount file systems that only own processes see."""
    command = [*_UNSHARE, "sh", "-c", "mount -t tmpfs tmpfs /tmp"]
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


def log_to_full_disk(directory: Path) -> list[str]:
    """Prefix of a command whose standard error goes to `directory`/log, on a file system of its own that it fills."""
    mount = f'mount -t tmpfs -o size={PAGE_BYTES} tmpfs "$0"'
    script = f'head -c {PAGE_BYTES - LOG_ROOM_BYTES} /dev/zero >"$0"/log && exec "$@" 2>>"$0"/log'
    return [*_UNSHARE, "sh", "-c", f"{mount} && {script}", str(directory)]


def is_log_full(pid: int, directory: Path) -> bool:
    """Whether the process of log_to_full_disk() has filled its disk. Writes to it failed from then on."""
    return Path(f"/proc/{pid}/root/{directory}/log").stat().st_size == PAGE_BYTES


@contextmanager
def no_more_memory(pid: int) -> Iterator[None]:
    """The process gets no more pages of address space while this is open."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    in_use_bytes = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * PAGE_BYTES
    resource.prlimit(pid, resource.RLIMIT_AS, (in_use_bytes, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, (soft, hard))
