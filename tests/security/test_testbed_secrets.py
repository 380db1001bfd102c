"""Values of [training.environment] may be secrets: they reach workers, and nothing that is printed, kept or listed."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from testbed_chains import skip_without_namespaces
from testbed_plans import DESCRIPTIONS
from testbed_runs import DEADLINE_S, down, two_hosts
from typer.testing import CliRunner

from byteps_thc.errors import ConfigurationError
from byteps_thc.tools.cli import app
from thc_lab.testbed import operations
from thc_lab.testbed.plan import plan
from thc_lab.testbed.reading import load, read

SECRET = "hunter2-$(id)"
NAMES = ("dpdk_switch", "torchrun", "colocated", "racks")


def describe(folder: Path, name: str, variables: str) -> Path:
    text = (DESCRIPTIONS / f"{name}.toml").read_text(encoding="utf-8")
    file = folder / "testbed.toml"
    text = text.replace('environment = { WANDB_API_KEY = "a-secret", OMP_NUM_THREADS = "4" }', "")
    file.write_text(text.replace("[training]", f"[training]\nenvironment = {{ {variables} }}"), encoding="utf-8")
    return file


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, ["testbed", *words])


@pytest.mark.parametrize("format", ["text", "json", "slurm", "kubernetes"])
@pytest.mark.parametrize("name", NAMES)
def test_a_plan_has_names_only(name: str, format: str, tmp_path: Path) -> None:
    file = describe(tmp_path, name, f"API_TOKEN = '{SECRET}', NCCL_DEBUG = 'hunter2'")
    result = invoke("plan", str(file), "--format", format)
    assert result.exit_code == 0, result.output
    assert "hunter2" not in result.output
    assert "API_TOKEN" in result.output
    assert "NCCL_DEBUG" in result.output


def test_a_variable_of_the_training_is_not_that_of_the_plan(tmp_path: Path) -> None:
    """It wins, as it always did; a plan then has no other value that would reach the worker."""
    planned = plan(load(describe(tmp_path, "colocated", "CUDA_VISIBLE_DEVICES = '7', THC_LOG_EVERY = '10'")))
    workers = [process for process in planned.processes if process.role == "worker"]
    for process in planned.processes:
        assert process.private == (("CUDA_VISIBLE_DEVICES", "THC_LOG_EVERY") if process in workers else ())
        assert not {"CUDA_VISIBLE_DEVICES", "THC_LOG_EVERY"} & process.environment.keys()


def test_a_file_of_variables_is_new_and_private(tmp_path: Path) -> None:
    file = describe(tmp_path, "torchrun", f"API_TOKEN = '{SECRET}', EMPTY = '', SPACED = ' a b '")
    wanted = tmp_path / "thc-ddp.env"
    result = invoke("plan", str(file), "--format", "slurm", "--environment-file", str(wanted))
    assert result.exit_code == 0, result.output
    assert wanted.read_text() == f"API_TOKEN={SECRET}\nEMPTY=\nSPACED= a b \n"
    assert stat.S_IMODE(wanted.stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (wanted, tmp_path / "link"):
        result = invoke("plan", str(file), "--environment-file", str(path))
        assert result.exit_code == 1
        assert "always a new one" in result.stderr
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    "variables",
    [
        'API_TOKEN = "hunter2\\n"',
        "\"API TOKEN\" = 'hunter2'",
        "API_TOKEN = 2.5, B = { hunter2 = 1 }",
        "BYTEPS_TRACE_DIR = '$(hunter2)'",
        "THC_JOB = 'hunter2'",
        "BASH_ENV = 'hunter2'",
        "PATH = 'hunter2'",
    ],
)
def test_an_error_has_no_values(variables: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"training.environment") as caught:
        load(describe(tmp_path, "torchrun", variables))
    assert "hunter2" not in str(caught.value).replace("hunter2: ", "")


def test_a_run_keeps_no_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_namespaces()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # It shows what it has, and the command lines of all processes, its own and those that started it.
    script = "printf '%s\\n' \"$API_TOKEN\"; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0\\n' '  '; echo"
    planned = two_hosts(f"secret{os.getpid()}", tmp_path, script)
    worker = dataclasses.replace(planned.processes[-1], private=("API_TOKEN",))
    planned = dataclasses.replace(planned, processes=(*planned.processes[:-1], worker))
    lines: list[str] = []
    private = {"API_TOKEN": SECRET, "UNUSED": "hunter2"}
    work = operations.run(planned, lambda _: None, lambda _, line: lines.append(line), DEADLINE_S, private)
    try:
        asyncio.run(work)
        first, *rest = lines
        assert first == SECRET
        assert "thc_lab.testbed.keeper" in "".join(rest)
        assert SECRET not in "".join(rest)
        kept = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
        assert {"plan.json", "journal.json"} <= {path.name for path in kept}
        for path in kept:
            if path.suffix != ".log":  # what the worker itself has printed
                assert "hunter2" not in path.read_text(), path
    finally:
        down(planned)


def test_the_description_is_the_only_place(tmp_path: Path) -> None:
    """What a plan has of a description does not change with the values: the same plan goes on."""
    plans = []
    for value in ("one", "two"):
        fields = tomllib.loads(describe(tmp_path, "torchrun", f"API_TOKEN = '{value}'").read_text(encoding="utf-8"))
        plans.append(plan(read(fields)))
    assert plans[0] == plans[1]
