"""Leftovers of a `thc demo-switch` that a signal has ended, and their removal."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from thc_lab.namespaces import FOLDER, Namespaces, delete, find_leftovers, name_prefix

DEADLINE_S = 120.0
THC = str(Path(sys.executable).parent / "thc")
#: two workers and two switches
NAMESPACES = 4

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def namespaces_of(pid: int) -> list[str]:
    """Names of a process's namespaces, whether it runs or not."""
    return (
        sorted(path.name for path in FOLDER.iterdir() if path.name.startswith(f"thc{pid}.")) if FOLDER.is_dir() else []
    )


def running(group: int) -> list[str]:
    """Names of the processes of a group that run."""
    names = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            before, _, after = stat.read_text().rpartition(")")
            state, _, its_group, *_ = after.split()
            if int(its_group) == group and state != "Z":
                names.append(before.partition("(")[2])
    return names


def end(demo: subprocess.Popen[bytes]) -> None:
    """Also removes its leftovers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(demo.pid, signal.SIGKILL)
    demo.wait(DEADLINE_S)
    for name in namespaces_of(demo.pid):
        delete(name)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A demo that has made its namespaces, and is starting its switches."""
    command = [THC, "demo-switch", "--target", "model", "--workers", "2", "--steps", "1000", "--out", str(tmp_path)]
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests run under nohup
    try:
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        wait_until(lambda: len(namespaces_of(process.pid)) == NAMESPACES or process.poll() is not None)
        assert process.poll() is None, (tmp_path / "log").read_text()
        yield process
    finally:
        end(process)


@needs_root
@pytest.mark.parametrize(("stop", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_run_that_is_told_to_end_leaves_nothing(
    demo: subprocess.Popen[bytes], stop: signal.Signals, status: int
) -> None:
    demo.send_signal(stop)
    demo.send_signal(stop)  # an impatient user: changes nothing
    assert demo.wait(DEADLINE_S) == status
    assert namespaces_of(demo.pid) == []
    wait_until(lambda: not running(demo.pid))


@needs_root
def test_the_next_run_removes_what_a_killed_one_left(demo: subprocess.Popen[bytes]) -> None:
    names = namespaces_of(demo.pid)
    assert not set(names) & set(find_leftovers()), "it runs"
    demo.kill()
    demo.wait(DEADLINE_S)
    assert set(names) <= set(find_leftovers())
    with Namespaces() as namespaces:
        assert namespaces_of(demo.pid) == []
        own = namespaces.add("own")
        assert own not in find_leftovers()
    wait_until(lambda: not running(demo.pid))  # its switches and workers have noticed


def test_the_demo_without_a_switch_takes_thc_ps_and_namespaces_with_it(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        command = [THC, "demo", "--workers", "2", "--steps", "1000", "--out", str(tmp_path)]
        demo = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: "thc-ps" in running(demo.pid) or demo.poll() is not None)
        assert bool(namespaces_of(demo.pid)) == (os.geteuid() == 0)
        demo.terminate()
        assert demo.wait(DEADLINE_S) == 143, (tmp_path / "log").read_text()
        assert namespaces_of(demo.pid) == []
        wait_until(lambda: not running(demo.pid))
    finally:
        end(demo)


def test_names_of_living_and_dead_processes(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    own = name_prefix()
    pids = own.rpartition(".")[2]  # with a hyphen
    others = ["thc", "thcx-a"]
    others += [f"thc{ended.pid}{rest}" for rest in (".5.1-another-container", "-somebody-s", ".5-a")]
    living = [f"{own}a", *others, f"other{ended.pid}.5.{pids}a"]
    dead = [f"thc{os.getpid()}.1.{pids}a", f"thc{ended.pid}.5.{pids}b"]
    for name in living + dead:
        (tmp_path / name).touch()
    assert find_leftovers(tmp_path) == sorted(dead)
    assert find_leftovers(tmp_path / "absent") == []
