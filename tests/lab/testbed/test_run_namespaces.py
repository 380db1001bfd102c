"""`thc testbed` with hosts in network namespaces: what is up stays up, failures are named, nothing is left behind."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from testbed_chains import skip_without_namespaces
from testbed_runs import DEADLINE_S, FIRST, SECOND, down, is_alive, namespaces_of, run, start_run, states, two_hosts, up

from byteps_thc.errors import ConfigurationError, TransportError
from thc_lab.testbed import operations
from thc_lab.testbed.hosts.namespaces import command_inside, namespace_of
from thc_lab.testbed.process import HostSetup, Plan, SetupStep
from thc_lab.testbed.state import InUseError, State

MakePlan = Callable[..., Plan]


@pytest.fixture
def make_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakePlan]:
    """Plans with a name and a state of their own; taken down afterwards."""
    skip_without_namespaces()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made: list[Plan] = []

    def make(*workers: str, **options: object) -> Plan:
        made.append(two_hosts(f"test{os.getpid()}", tmp_path, *workers, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    if made:
        down(made[0])
        assert namespaces_of(made[0]) == []


def await_line(process: subprocess.Popen[str], wanted: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if wanted in line:
            return
    pytest.fail(f"it ended without {wanted!r}")


def test_two_ups_in_a_row_and_two_downs(make_plan: MakePlan, tmp_path: Path) -> None:
    plan = make_plan("true")
    up(plan)
    before = states(plan)
    assert before["server"][0] == "running"
    up(plan)
    assert states(plan) == before
    ping = [*command_inside(namespace_of(plan.name, SECOND)), "ping", "-c", "1", "-W", "20", "10.79.0.1"]
    if subprocess.run(["which", "ping"], capture_output=True, check=False).returncode == 0:
        subprocess.run(ping, check=True, timeout=DEADLINE_S, capture_output=True)
    assert (tmp_path / "run/jobs.txt").read_text() == "jobs"
    for _ in range(2):
        down(plan)
        assert namespaces_of(plan) == []
        assert not is_alive(before["server"][1])
        assert not (tmp_path / "run").exists()
        assert list((tmp_path / "state/byteps_thc/testbed").rglob("*.*")) == []


@pytest.mark.slow
def test_a_cable_that_was_lost_is_laid_again(make_plan: MakePlan) -> None:
    plan = make_plan("true")
    up(plan)
    inside = command_inside(namespace_of(plan.name, FIRST))
    subprocess.run([*inside, "ip", "link", "del", "data0"], check=True, timeout=DEADLINE_S)
    up(plan)
    shown = subprocess.run([*inside, "ip", "address", "show", "data0"], check=True, capture_output=True, text=True)
    assert "10.79.0.1/24" in shown.stdout


def test_a_run_shows_what_the_workers_print_and_may_be_repeated(make_plan: MakePlan) -> None:
    plan = make_plan("echo one", "sleep 0.5; echo two")
    for _ in range(2):
        lines: list[str] = []
        run(plan, lines)
        assert sorted(lines) == ["[worker0] one", "[worker1] two"]
    assert {name: state for name, (state, _) in states(plan).items()} == {
        "server": "running",
        "worker0": "ended",
        "worker1": "ended",
    }


def test_a_worker_that_dies_is_named_and_the_others_are_ended(make_plan: MakePlan) -> None:
    plan = make_plan("echo well; sleep 600", "echo no memory is left; kill -9 $$")
    with pytest.raises(TransportError) as failure:
        run(plan, [])
    message = str(failure.value)
    assert "worker1 on second was ended by signal 9 (SIGKILL)" in message
    assert "no memory is left" in message
    assert states(plan)["worker0"][0] == "ended"


@pytest.mark.slow
def test_a_server_that_ends_while_workers_train_is_named(make_plan: MakePlan) -> None:
    plan = make_plan("sleep 600", server="echo listening; sleep 3; echo no space left; exit 7")
    with pytest.raises(TransportError, match=r"(?s)server on first ended with exit status 7.*no space left"):
        run(plan, [])
    assert states(plan)["worker0"][0] == "ended"


@pytest.mark.slow
def test_a_server_that_does_not_get_ready_is_named(make_plan: MakePlan) -> None:
    with pytest.raises(TransportError, match=r"(?s)server on first ended with exit status 8 before.*cannot listen"):
        up(make_plan("true", server="echo cannot listen; exit 8"))


@pytest.mark.slow
def test_a_run_that_takes_too_long_is_ended(make_plan: MakePlan) -> None:
    plan = make_plan("sleep 600")
    with pytest.raises(TransportError, match="--time-limit, 1 s"):
        asyncio.run(operations.run(plan, lambda _: None, lambda *_: None, 1.0))
    assert states(plan)["worker0"][0] == "ended"


def test_ctrl_c_ends_the_workers(make_plan: MakePlan) -> None:
    plan = make_plan("trap 'echo bye; exit 0' TERM; echo training; sleep 600 & wait")
    with start_run(plan) as running:
        await_line(running, "[worker0] training")
        running.send_signal(signal.SIGINT)
        assert running.wait(DEADLINE_S) == 128 + signal.SIGINT
    assert states(plan)["worker0"][0] == "ended"
    assert states(plan)["server"][0] == "running"


def test_down_cleans_up_after_a_killed_run(make_plan: MakePlan) -> None:
    plan = make_plan("echo training; sleep 600")
    with start_run(plan) as running:
        await_line(running, "[worker0] training")
        running.kill()
        running.wait(DEADLINE_S)
    left = states(plan)
    assert {state for state, _ in left.values()} == {"running"}
    with pytest.raises(InUseError, match="workers of another run are there: worker0 on second"):
        run(dataclasses.replace(plan, processes=plan.processes[:1]), [])
    with pytest.raises(InUseError, match="workers of another run are there: worker0 on second"):
        up(make_plan("echo other"))
    up(plan)  # the same is up already
    assert State(plan.name).plan() == plan
    assert states(plan) == left
    down(plan)
    assert namespaces_of(plan) == []
    assert not any(is_alive(pid) for _, pid in left.values())


@pytest.mark.slow
def test_down_finds_processes_of_a_namespace_that_is_gone(make_plan: MakePlan) -> None:
    plan = make_plan("true")
    up(plan)
    pid = states(plan)["server"][1]
    subprocess.run(["ip", "netns", "del", namespace_of(plan.name, FIRST)], check=True, timeout=DEADLINE_S)
    down(plan)
    deadline = time.monotonic() + DEADLINE_S
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_setup_is_done_once_and_undone_backwards(make_plan: MakePlan, tmp_path: Path) -> None:
    steps = tuple(
        SetupStep(
            f"step {n}",
            do=("sh", "-c", f"touch {tmp_path}/step{n}; echo do{n} >> {tmp_path}/log"),
            done=("test", "-e", f"{tmp_path}/step{n}"),
            undo=("sh", "-c", f"rm {tmp_path}/step{n}; echo undo{n} >> {tmp_path}/log"),
        )
        for n in range(3)
    )
    (tmp_path / "step1").touch()  # it was so before, and stays
    plan = make_plan("true", setup=HostSetup(FIRST, steps))
    up(plan)
    up(plan)
    down(plan)
    assert (tmp_path / "log").read_text().split() == ["do0", "do2", "undo2", "undo0"]
    assert (tmp_path / "step1").exists()


@pytest.mark.slow
def test_a_step_without_effect_is_an_error(make_plan: MakePlan) -> None:
    step = SetupStep("bind", do=("echo", "interface is active"), done=("false",))
    wanted = "`echo 'interface is active'` has run, and `false` still fails. It said: interface is active"
    with pytest.raises(ConfigurationError, match=f"first: bind: {wanted}"):
        up(make_plan("true", setup=HostSetup(FIRST, (step,))))


def test_another_description_is_refused_while_it_is_up(make_plan: MakePlan) -> None:
    plan = make_plan("true")
    up(plan)
    other = make_plan("true", server="echo listening as another; exec sleep 600")
    with pytest.raises(ConfigurationError, match="is up with another description"):
        up(other)
    # Workers alone may change: another command, more steps.
    run(make_plan("echo other"), lines := [])
    assert lines == ["[worker0] other"]


@pytest.mark.slow
def test_two_testbeds_do_not_meet(make_plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan("true")
    other = dataclasses.replace(plan, name=f"{plan.name}b", files=())
    up(plan)
    try:
        up(other)
        assert len(namespaces_of(plan) + namespaces_of(other)) == 4
    finally:
        down(other)
    assert states(plan)["server"][0] == "running"
    # The same name from another state folder: not the same testbed.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    with pytest.raises(ConfigurationError, match="that this testbed has not made"):
        up(plan)
    down(plan)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert len(namespaces_of(plan)) == 2
