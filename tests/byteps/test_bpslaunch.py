"""bpslaunch on hosts with few CPUs: the installed one, with another folder in place of /sys."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.byteps

#: Runs bpslaunch with the folder that is to tell it about CPUs, and the command for its workers.
LAUNCH = (
    "import importlib.machinery, importlib.util, sys\n"
    "loader = importlib.machinery.SourceFileLoader('bpslaunch', sys.argv[1])\n"
    "bpslaunch = importlib.util.module_from_spec(importlib.util.spec_from_loader('bpslaunch', loader))\n"
    "loader.exec_module(bpslaunch)\n"
    "bpslaunch.NUMA_PATH = sys.argv[2]\n"
    "sys.argv[1:] = sys.argv[3:]\n"
    "bpslaunch.launch_bps()\n"
)
UNBOUND = "they run on all of them"


def launch(folder: Path, cpus: Sequence[int], *, processes: int = 1, **variables: str) -> str:
    """Return the output of bpslaunch and its workers on a host with these CPUs."""
    for cpu in cpus:
        (folder / "node0" / f"cpu{cpu}").mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "BYTEPS_"))}
    environment |= {
        "DMLC_ROLE": "worker",
        "DMLC_NUM_WORKER": "1",
        "DMLC_WORKER_ID": "0",
        "NVIDIA_VISIBLE_DEVICES": ",".join(map(str, range(processes))),
    }
    bpslaunch = Path(sys.executable).parent / "bpslaunch"
    command = [sys.executable, "-P", "-c", LAUNCH, str(bpslaunch), str(folder), "echo process $BYTEPS_LOCAL_RANK"]
    finished = subprocess.run(
        command, env=environment | variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert finished.returncode == 0, finished.stderr
    for process in range(processes):
        assert f"process {process}\n" in finished.stdout
    return finished.stdout


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_hosts_with_few_cpus(tmp_path: Path, count: int) -> None:
    assert UNBOUND in launch(tmp_path, range(count))


def test_more_processes_than_cpus(tmp_path: Path) -> None:
    assert UNBOUND in launch(tmp_path, range(4), processes=5)


def test_cpus_that_this_container_may_not_use(tmp_path: Path) -> None:
    assert UNBOUND in launch(tmp_path, range(5000, 5008))


def test_binding_can_be_switched_off(tmp_path: Path) -> None:
    assert UNBOUND not in launch(tmp_path, range(2), BYTEPS_NUMA_ON="0")


@pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="CPUs 0 and 1 are not for this process")
def test_enough_cpus_are_bound_to(tmp_path: Path) -> None:
    """BYTEPS_MULTITHREADED_CPU=0: none of the two is counted as a hyperthread."""
    output = launch(tmp_path, range(2), BYTEPS_MULTITHREADED_CPU="0")
    assert UNBOUND not in output
    assert "enable NUMA finetune" in output
