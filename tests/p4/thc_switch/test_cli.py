"""`thc switch`: its output, and its errors without a switch."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from byteps_thc._cli.cli import app
from thc_switch import Deployment, cli, plan
from thc_switch.controls import JobCheck
from thc_switch.targets import bfshell, bmv2
from thc_switch.targets.model import new_switch_with_control

EXAMPLE = Path(__file__).resolve().parents[3] / "p4" / "jobs.example.toml"
PAGE = EXAMPLE.parents[1] / "docs/switch.md"
runner = CliRunner()


@pytest.fixture
def no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without SDE and bmv2."""
    for name in ("SDE", "SDE_INSTALL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "")


@pytest.fixture
def bmv2_jobs(tmp_path: Path) -> Path:
    """The example, for bmv2."""
    path = tmp_path / "jobs.toml"
    text = EXAMPLE.read_text().replace('"tofino1"', '"v1model"').replace("control_address", "#")
    path.write_text(text)
    return path


def switch(*arguments: str | Path) -> str:
    """Output of a command that works."""
    result = runner.invoke(app, ["switch", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def failure(*arguments: str | Path) -> str:
    """One line of a command that does not."""
    result = runner.invoke(app, ["switch", *map(str, arguments)])
    assert result.exit_code == 1
    assert result.stderr.startswith("thc: ")
    assert "Traceback" not in result.stderr
    return result.stderr


def test_plan_prints_every_step() -> None:
    wanted = plan(Deployment.load(EXAMPLE))
    assert switch("plan", EXAMPLE).splitlines() == wanted.lines()


def test_the_file_of_the_page_is_right(tmp_path: Path) -> None:
    [text] = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    planned = runner.invoke(app, ["switch", "plan", str(path)])
    assert (planned.exit_code, planned.stderr) == (0, "")
    path.write_text(text.replace("slots = 1024", "slots = 256\nlanes = 8"))
    assert switch("describe", path, "jobs.7.job_id", "jobs.7.workers.0.udp_port") == "8\n50008\n"
    assert switch("plan", path)


def test_plan_for_a_target(bmv2_jobs: Path) -> None:
    deployment = Deployment.load(EXAMPLE)
    operations = list(plan(deployment).operations())
    assert switch("plan", EXAMPLE, "--target", "bfshell") == bfshell.script(operations, deployment.switch)
    assert switch("plan", bmv2_jobs, "--target", "bmv2") == bmv2.commands(plan(Deployment.load(bmv2_jobs)).operations())


def test_sections() -> None:
    parts = [switch("plan", EXAMPLE, "--only", section) for section in ("ports", "multicast", "tables")]
    assert "".join(parts) == switch("plan", EXAMPLE)


@pytest.mark.usefixtures("no_tools")
@pytest.mark.parametrize("reached_by", ["bfshell", "grpc"])
def test_a_plan_needs_no_switch(reached_by: str) -> None:
    assert switch("plan", EXAMPLE, "--target", reached_by)


@pytest.mark.usefixtures("no_tools")
@pytest.mark.parametrize("command", [["install"], ["status"], ["reset", "1"]])
def test_what_is_missing_is_named(command: list[str], bmv2_jobs: Path) -> None:
    name, *rest = command
    assert "set SDE" in failure(name, EXAMPLE, *rest, "--target", "bfshell")
    assert "bfrt_grpc is not importable" in failure(name, EXAMPLE, *rest, "--target", "grpc")
    assert "simple_switch_CLI is not on PATH" in failure(name, bmv2_jobs, *rest, "--target", "bmv2")
    assert "use bfshell or grpc" in failure(name, EXAMPLE, *rest, "--target", "bmv2")
    assert "use bmv2" in failure(name, bmv2_jobs, *rest, "--target", "grpc")


def test_reset_of_a_job_that_is_not_there() -> None:
    assert "job 5 is not in the job description; its jobs are 1" in failure(
        "reset", EXAMPLE, "5", "--target", "bfshell"
    )


def test_serve_asks_for_what_it_needs(tmp_path: Path, bmv2_jobs: Path) -> None:
    assert "serve a Tofino with --target grpc" in failure("serve", EXAMPLE, "--target", "bfshell")
    path = tmp_path / "no_interface.toml"
    path.write_text(bmv2_jobs.read_text().replace("cpu_interface", "# cpu_interface"))
    assert "pass --interface, or set cpu_interface" in failure("serve", path, "--target", "bmv2")


@pytest.mark.slow
def test_serve_installs_first_when_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a switch of the P4 model, in place of one that runs elsewhere."""
    deployment = Deployment.load(EXAMPLE)
    model, control = new_switch_with_control(deployment.switch)
    monkeypatch.setattr(cli, "connect", lambda *_: control)
    for options, installed in (((), False), (("--install",), True)):
        before = len(model.table_entries(JobCheck.full_name("worker")))
        assert "thcnone" in failure("serve", EXAMPLE, "--target", "grpc", "--interface", "thcnone", *options)
        assert (len(model.table_entries(JobCheck.full_name("worker"))) > before) == installed


def test_describe() -> None:
    assert switch("describe", EXAMPLE, "switch.architecture") == "tofino1\n"
    assert json.loads(switch("describe", EXAMPLE, "jobs.0.workers.1.port")) == 136
    assert switch("describe", EXAMPLE, "switch.program", "jobs.0.quorum") == "thc_tna\nnull\n"
    assert "has no switch.nothing" in failure("describe", EXAMPLE, "switch.nothing")


def test_a_wrong_description_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(EXAMPLE.read_text().replace("[jobs.thc]", "[jobs.thc]\ngranularity = 100"))
    assert "use thc.granularity 85 or less" in failure("plan", path)


@pytest.mark.usefixtures("no_tools")
def test_run_says_what_it_needs(bmv2_jobs: Path) -> None:
    assert "write NUMBER=INTERFACE" in failure("run", EXAMPLE, "--port", "veth1")
    assert "port 1 is given twice" in failure("run", EXAMPLE, "--port", "1=a", "--port", "1=b")
    assert "--target model or bmv2" in failure("run", EXAMPLE, "--port", "1=a", "--target", "grpc")
    assert 'architecture = "v1model"' in failure("run", EXAMPLE, "--port", "1=a", "--target", "bmv2")
    assert "--cpu-interface" in failure("run", bmv2_jobs, "--port", "1=a", "--target", "bmv2")
    bmv2 = ("run", bmv2_jobs, "--port", "1=a", "--target", "bmv2", "--cpu-interface", "b")
    assert "simple_switch, simple_switch_CLI, p4c-bm2-ss not on PATH" in failure(*bmv2)
    assert "port 1: interface 'thcnone'" in failure("run", EXAMPLE, "--port", "1=thcnone")


def test_a_description_may_be_json(tmp_path: Path) -> None:
    path = tmp_path / "jobs.json"
    path.write_text(Deployment.load(EXAMPLE).model_dump_json())
    assert switch("plan", path) == switch("plan", EXAMPLE)
    path.write_text("[switch]")
    assert "is not a job description" in failure("plan", path)
