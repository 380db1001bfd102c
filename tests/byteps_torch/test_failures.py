"""Workers when something ends, or is not as it must be: an error within the deadline, and the end."""

import re
from pathlib import Path

import pytest
from byteps_lab import BytepsLab

from byteps_thc._cli.launch import ParameterServer

pytestmark = pytest.mark.byteps
PROGRAMS = Path(__file__).with_name("programs")
PROGRAM = PROGRAMS / "endless.py"


@pytest.mark.parametrize(
    ("route", "dies"),
    [
        ("network", "thc-ps"),
        pytest.param("network", "worker1", marks=pytest.mark.slow),
        pytest.param("servers", "server0", marks=pytest.mark.slow),
    ],
)
def test_one_dies(tmp_path, route, dies):
    """A step of endless.py ends in an error; its waits are 5 s long."""
    with ParameterServer() as thc_ps, BytepsLab(tmp_path) as lab:
        lab.start(PROGRAM, environment={"THC_SERVERS": thc_ps.address} if route == "network" else {"THC_ROUTE": route})
        lab.wait_for_output("worker0", "three steps")
        if dies == "thc-ps":
            thc_ps.process.kill()
        else:
            lab.kill(dies)
        for number in range(1 if dies == "worker1" else 2):
            worker = lab.wait_worker(number, deadline_s=60)
            found = re.search(r"DeadlineError after ([\d.]+) s", worker.output)
            assert found is not None, worker.output
            assert route == "servers" or 5 <= float(found[1]) < 30, worker.output
            assert "exit status 3" in worker.output, worker.output


@pytest.mark.parametrize("route", ["network", "servers"])
def test_workers_with_checkpoints_of_different_steps(tmp_path, route):
    """Both end at once, with an error that names both rounds, and not in a deadline."""
    with ParameterServer() as thc_ps, BytepsLab(tmp_path) as lab:
        environment = {"THC_ROUTE": route} | ({"THC_SERVERS": thc_ps.address} if route == "network" else {})
        lab.start(PROGRAMS / "other_checkpoints.py", environment=environment)
        for number, worker in enumerate(lab.wait(deadline_s=100)):
            own, other = (8, 1) if number else (1, 8)
            message = f"InputError: workers average different gradients: this one (worker {number}) 'weight' "
            assert message in worker.output
            assert f"in round {own}, another one the same in round {other}." in worker.output, worker.output
            assert "exit status 3" in worker.output, worker.output


def test_a_program_fails_while_byteps_connects(tmp_path):
    """BytePS cannot be shut down then; the process ends all the same, with its own error."""
    with BytepsLab(tmp_path) as lab:
        lab.start_worker(0, PROGRAMS / "raises_while_connecting.py")  # the other worker never starts
        worker = lab.wait_worker(0, deadline_s=90)
        # Only the reason: Python writes a traceback in pieces, and BytePS's threads write lines between those.
        assert "an error of the program's own" in worker.output, worker.output
        assert "exit status 1" in worker.output, worker.output


@pytest.mark.parametrize(
    ("call", "workers", "purpose"), [("init", 1, "connect to all workers and servers"), ("shutdown", 2, "shut down")]
)
def test_others_are_not_there(tmp_path, call, workers, purpose):
    """Calls in which BytePS itself would wait for ever."""
    with BytepsLab(tmp_path) as lab:
        for number in range(workers):
            lab.start_worker(number, PROGRAMS / "waits_for_others.py", call, "4")
        worker = lab.wait_worker(0, deadline_s=90)
        assert f"BytePS did not {purpose} within 4 s" in worker.output, worker.output
        assert "exit status 3" in worker.output, worker.output


@pytest.mark.slow
def test_others_do_not_resume(tmp_path):
    with BytepsLab(tmp_path) as lab:
        lab.start(PROGRAMS / "waits_for_others.py", "resume", "8")
        lab.wait_for_output("worker0", "suspended")
        lab.wait_servers()
        lab.start_servers()
        worker = lab.wait_worker(0, deadline_s=60)
        assert "BytePS did not connect to all workers and servers within 8 s" in worker.output, worker.output
        assert "exit status 3" in worker.output, worker.output
