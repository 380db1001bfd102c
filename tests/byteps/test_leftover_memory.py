"""Shared memory of killed workers, with files and processes of the test's own."""

import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from byteps_thc._net.byteps import leftover_memory

#: Opens and locks a file as BytePS's shared_memory.cc does, and says when it has.
HOLDER = (
    "import fcntl, os, sys, time\n"
    "descriptor = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o666)\n"
    "fcntl.flock(descriptor, fcntl.LOCK_SH)\n"
    "os.ftruncate(descriptor, 4096)\n"
    "print('locked', flush=True)\n"
    "time.sleep(600)\n"
)


def hold(path: Path) -> subprocess.Popen[str]:
    """A process that has the file as a worker has it."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    return holder


def kill(holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.communicate(timeout=30)


def test_a_file_is_in_use_until_the_last_of_its_processes_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "BytePS_ShM_9000_0_65536"
    first, second = hold(path), hold(path)
    try:
        assert leftover_memory.find(tmp_path) == []
        kill(first)
        assert leftover_memory.remove(tmp_path) == 0
        assert path.exists()
        kill(second)
        assert leftover_memory.find(tmp_path) == [path]
        assert leftover_memory.remove(tmp_path) == 4096
        assert not path.exists()
    finally:
        kill(first)
        kill(second)


def test_a_file_that_a_process_has_mapped_is_in_use_without_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "BytePS_ShM_9000_0_65536"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert leftover_memory.find(tmp_path) == []
    assert leftover_memory.find(tmp_path) == [path]


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("BytePS_ShM_9000_0_65536", True),
        ("BytePS_ShM_0_65536", True),
        ("BytePS_Pcie1_Shm_9000_0_65536", True),
        ("BytePS_ShM_65536", False),
        ("BytePS_ShM_9000_0_65536.bak", False),
        ("sem.BytePS_ShM_9000_0_65536", False),
    ],
)
def test_only_names_of_this_build_of_byteps(tmp_path: Path, name: str, ours: bool) -> None:
    (tmp_path / name).write_bytes(b"x")
    assert leftover_memory.find(tmp_path) == ([tmp_path / name] if ours else [])


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "BytePS_ShM_9000_0_1")
    (tmp_path / "BytePS_ShM_9000_0_2").mkdir()
    (tmp_path / "target").touch()
    (tmp_path / "BytePS_ShM_9000_0_3").symlink_to(tmp_path / "target")
    assert leftover_memory.find(tmp_path) == []
    assert leftover_memory.remove(tmp_path) == 0


def test_no_folder(tmp_path: Path) -> None:
    assert leftover_memory.find(tmp_path / "absent") == []
