"""docs/testbed.md: its commands and its script work as described, and its table has every section."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_snippets import python_snippets
from testbed_plans import DESCRIPTIONS
from typer.testing import CliRunner

from byteps_thc._cli.cli import app
from byteps_thc._cli.launch import ParameterServer
from thc_lab.testbed import cli
from thc_lab.testbed.description import Testbed

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs/testbed.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]


def test_every_command_is_there_and_described() -> None:
    names = {command.callback.__name__ for command in cli.app.registered_commands if command.callback} - {"print_plan"}
    names.add("plan")
    assert {line.split()[2] for line in COMMANDS} <= names
    assert set(re.findall(r"^\| `thc testbed (\w+) FILE", TEXT, re.MULTILINE)) == names


@pytest.mark.parametrize("line", [line for line in COMMANDS if " plan " in line])
def test_plans_are_printed(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = line.replace("rack.toml", str(DESCRIPTIONS / "dpdk_switch.toml")).split()
    assert words[0] == "thc"
    result = CliRunner().invoke(app, words[1:])
    assert result.exit_code == 0, result.output
    assert result.output


def test_the_table_has_every_section() -> None:
    section = TEXT.partition("## The description\n")[2].partition("\n## ")[0]
    rows = " ".join(re.findall(r"^\|.*", section, re.MULTILINE))
    for name in Testbed.model_fields:
        assert f"`{name}`" in rows or f"[{name}]" in rows, name


def test_the_script_averages_through_thc_ps(thc_ps_address: str, tmp_path: Path) -> None:
    [script] = python_snippets(DOCUMENT)["The description"]
    (tmp_path / "step.py").write_text(f"{script}print(state.compression_stats().ratio > 4)\n", encoding="utf-8")
    command = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2", "step.py"]
    variables = os.environ | {"THC_SERVERS": thc_ps_address, "THC_LOCAL": "127.0.0.1"}
    variables |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=180, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    # The ranks' lines may be mixed.
    assert re.findall("True|False", result.stdout) == ["True", "True"]


@pytest.fixture
def thc_ps_address() -> Iterator[str]:
    with ParameterServer() as server:
        yield server.address
