"""Values of [training.environment] may be secrets: they are in no plan and no error."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from testbed_plans import DESCRIPTIONS
from typer.testing import CliRunner

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._cli.cli import app
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


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_has_names_only(name: str, tmp_path: Path) -> None:
    result = invoke("plan", str(describe(tmp_path, name, f"API_TOKEN = '{SECRET}', NCCL_DEBUG = 'hunter2'")))
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


def test_the_description_is_the_only_place(tmp_path: Path) -> None:
    """A plan does not change with the values of a description."""
    plans = []
    for value in ("one", "two"):
        fields = tomllib.loads(describe(tmp_path, "torchrun", f"API_TOKEN = '{value}'").read_text(encoding="utf-8"))
        plans.append(plan(read(fields)))
    assert plans[0] == plans[1]
