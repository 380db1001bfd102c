"""No thread of gloo is left when Python ends, where it would abort the process.

Nothing holds a process group after destroy_process_group(), and our own groups end even if a script closes nothing.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from byteps_thc._cli.launch import ParameterServer
from thc_lab.ranks import run_ranks

# The optimizer imports much of torch, with functions whose default argument is the default group.
CODE = """
import importlib, pathlib, sys, torch
importlib.import_module(sys.argv[1])
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=0, world_size=1)
torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))])
torch.distributed.destroy_process_group()
print(*(path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")))
"""


@pytest.mark.parametrize("module", ["byteps_thc.ddp", "byteps_thc.fsdp", "thc_lab.demo.worker"])
def test_no_thread_of_the_group_is_left_to_abort_the_process(module: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", CODE, module, str(tmp_path / "rendezvous")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert "gloo" not in result.stdout, result.stdout


OWN_GROUPS = """
import atexit, pathlib, sys, time, torch
from torch.nn.parallel import DistributedDataParallel

def threads():
    return [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")]

def gloo():
    return sum("gloo_run" in name for name in threads())

def started():  # a thread has its name a moment after it started
    time.sleep(0.5)
    return gloo()

torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=int(sys.argv[1]), world_size=2)
theirs = started()
atexit.register(lambda: print(theirs, ours, closed, gloo()))  # called after all that is registered later
from byteps_thc import ThcReducer
from byteps_thc.ddp import compress
ddp = DistributedDataParallel(torch.nn.Linear(100, 100))
state = compress(ddp)
ddp(torch.ones(1, 100)).sum().backward()
ours = started() - theirs
if sys.argv[3] == "closes":
    state.close()
    state.close()
    for bits in (5, 4):
        reducer = ThcReducer(None, bits=bits)
        reducer.all_reduce({"weight": torch.ones(5000)})
        reducer.close()
    closed = gloo()
else:
    closed = theirs
"""


@pytest.mark.parametrize("ending", ["closes", "leaves"])
def test_groups_of_ours_end_with_their_engine_or_before_python_does(tmp_path: Path, ending: str) -> None:
    command = [sys.executable, "-P", "-c", OWN_GROUPS]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "rendezvous"), ending], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for rank in ranks:
        output, _ = rank.communicate(timeout=100)
        theirs, ours, closed, left = map(int, output.split())
        assert rank.returncode == 0
        assert theirs > 0
        assert ours > 0
        assert closed == theirs
        assert left == theirs


CLOSED = ("closed_ddp", "closed_reducer")
THROUGH_A_SERVER = (
    "closed_failover",
    "closed_session",
    "swept_ddp_server",
    "swept_ddp_failover",
    "reducer_server",
    "session",
)


@pytest.mark.parametrize(
    ("ranks", "front_ends"),
    [
        pytest.param(2, CLOSED, id="closed"),
        pytest.param(4, CLOSED, id="closed, two nodes", marks=pytest.mark.slow),
        pytest.param(2, ("ddp", "fsdp", "reducer_in_flight"), id="forgotten"),
        pytest.param(2, ("ddp_synchronized", "hsdp", "reducer"), id="forgotten, more", marks=pytest.mark.slow),
        pytest.param(4, ("ddp", "reducer"), id="forgotten, two nodes", marks=pytest.mark.slow),
        pytest.param(2, THROUGH_A_SERVER, id="forgotten, with a server"),
    ],
)
def test_neither_threads_nor_files_stay_of_what_is_closed_or_forgotten(
    tmp_path: Path, thc_ps: ParameterServer, ranks: int, front_ends: tuple[str, ...]
) -> None:
    settings = {"front_ends": front_ends, "server": thc_ps.address}
    for reported in run_ranks(Path(__file__).with_name("cycles_rank.py"), ranks, tmp_path, settings=settings):
        for front_end, more in reported.items():  # threads, files
            assert more == [(0, 0)] * len(more), front_end
