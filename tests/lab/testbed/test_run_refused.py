"""`thc testbed run --down` that is refused leaves the testbed as it is: it is another run's."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
from testbed_plans import EXAMPLE
from typer.testing import CliRunner

from byteps_thc.tools.cli import app
from thc_lab.testbed import operations
from thc_lab.testbed.hosts.kept import KeptHost
from thc_lab.testbed.hosts.local import LocalHost
from thc_lab.testbed.plan import plan
from thc_lab.testbed.process import Plan
from thc_lab.testbed.reading import load
from thc_lab.testbed.run import clear_last_run
from thc_lab.testbed.state import InUseError, State


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return plan(load(EXAMPLE))


def bring_up(planned: Plan) -> State:
    """As far as this machine knows."""
    state = State(planned.name)
    state.begin(planned)
    state.journal.hosts = [planned.hosts[0].name]
    state.write()
    return state


def run_and_down() -> str:
    result = CliRunner().invoke(app, ["testbed", "run", str(EXAMPLE), "--down"])
    assert result.exit_code == 1
    return result.stderr + result.stdout


def test_another_description(planned: Plan) -> None:
    other = dataclasses.replace(planned, files=planned.files[:1])
    state = bring_up(other)
    output = run_and_down()
    assert "is up with another description" in output
    assert "is down" not in output
    assert "stays up" not in output
    assert state.plan() == other


def test_another_command(planned: Plan) -> None:
    state = bring_up(planned)
    with state.locked():
        assert "is changing testbed" in run_and_down()
    assert state.plan() == planned


def test_workers_of_another_run(planned: Plan) -> None:
    """Also those that the new description does not have any more."""
    host = planned.hosts[0]
    kept = KeptHost(LocalHost(host.name, host.python), f"{planned.name}/{host.name}")
    worker = dataclasses.replace(
        planned.process(planned.workers[-1]), argv=("sleep", "600"), environment={}, folder=None
    )
    fewer = dataclasses.replace(
        planned, processes=tuple(process for process in planned.processes if process.name != worker.name)
    )

    async def start_and_clear() -> None:
        await kept.start(worker)
        try:
            with pytest.raises(InUseError, match=f"workers of another run are there: {worker.name} on {host.name}"):
                await clear_last_run(fewer, {host.name: kept})
        finally:
            await kept.stop(None, 0)

    asyncio.run(start_and_clear())


def test_what_is_up_stays_known_until_a_run_may_begin(planned: Plan) -> None:
    state = bring_up(planned)
    fewer = dataclasses.replace(
        planned, processes=tuple(process for process in planned.processes if process.name != planned.workers[-1])
    )
    state.begin(fewer)
    assert state.plan() == planned
    state.keep(fewer)
    assert state.plan() == fewer


def test_status_says_that_nothing_is_up(planned: Plan) -> None:
    result = CliRunner().invoke(app, ["testbed", "status", str(EXAMPLE)])
    assert result.exit_code == 1
    assert f"testbed {planned.name} is not up" in result.stderr


@pytest.mark.parametrize("command", ["up", "run", "down", "status"])
def test_a_state_folder_that_cannot_be_used(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").write_text("a file")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    result = CliRunner().invoke(app, ["testbed", command, str(EXAMPLE)])
    assert result.exit_code == 1
    assert "set XDG_STATE_HOME to a folder that this user may write to" in result.stderr


def test_down_says_that_it_knows_no_testbed(planned: Plan, tmp_path: Path) -> None:
    said: list[str] = []
    asyncio.run(operations.down(planned.name, said.append))
    [line] = said
    assert str(tmp_path / "byteps_thc/testbed" / planned.name) in line
