"""The `thc` command: output, tables in a pipe, and errors."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._cli.cli import ThcCommands, app

runner = CliRunner()


def test_version() -> None:
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"byteps_thc {version('byteps_thc')}\n"


COMMANDS = ("demo", "demo-switch", "doctor", "compare", "switch")


def test_help_names_every_command_with_what_it_does() -> None:
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    for command in COMMANDS:
        assert re.search(rf"{command} +[A-Z]\w+ ", result.output), command


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_of_its_own(command: str) -> None:
    result = runner.invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "--" in result.output


def imported_by(*arguments: str) -> set[str]:
    """Modules that a command imports: with `thc ARGUMENTS` in a process of its own."""
    code = (
        "import sys; from typer.testing import CliRunner; from byteps_thc._cli.cli import app; "
        "CliRunner().invoke(app, sys.argv[1:], catch_exceptions=False); print(*sys.modules)"
    )
    command = [sys.executable, "-P", "-c", code, *arguments]
    return set(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split())


@pytest.mark.parametrize("arguments", [["--version"], ["key"]], ids=" ".join)
def test_light_commands_import_neither_torch_nor_the_p4_compiler(arguments: list[str]) -> None:
    modules = imported_by(*arguments)
    assert "byteps_thc._cli.cli" in modules
    unwanted = {"torch", "lark", "thc_switch", "thc_p4_model", "matplotlib", "thc_lab.demo.cli"}
    assert not modules & unwanted


def test_help_does_not_import_torch() -> None:
    modules = imported_by("--help")
    assert "thc_switch.cli" in modules  # its commands are in the help
    assert "torch" not in modules


def test_unknown_commands_are_refused_and_typing_errors_get_a_suggestion() -> None:
    for command, words in (("xyzzy", "No such command 'xyzzy'"), ("compar", "Did you mean 'compare'")):
        result = runner.invoke(app, [command])
        assert result.exit_code == 2
        assert words in result.output


BROKEN = {
    "its package": ("thc_none.cli:app", "No module named 'thc_none'"),
    "torch": ("thc_broken:app", "No module named 'torch': this part of byteps_thc needs PyTorch, pip install"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_distribution_leaves_the_other_commands(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place, why = BROKEN[what]
    (tmp_path / "thc_broken.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(ThcCommands, "modules", {**ThcCommands.modules, "demo": place})
    shown = runner.invoke(app, ["--help"], env={"COLUMNS": "300"})
    assert shown.exit_code == 0
    assert re.search(rf"demo +Does not load: {why}", shown.output)
    assert re.search(r"doctor +Say what works", shown.output)
    result = runner.invoke(app, ["demo", "--steps", "3"])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"thc: thc demo does not load: {why}")


def test_an_error_is_one_line_without_traceback() -> None:
    result = runner.invoke(app, ["demo", "--workers", "0"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "thc: --workers must be at least 1, not 0\n"


def test_debug_raises_the_error() -> None:
    result = runner.invoke(app, ["--debug", "demo", "--workers", "0"])
    assert isinstance(result.exception, ConfigurationError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "--steps must be at least 1"),
        (["--drop", "0.7"], "--drop is a probability below 0.5"),
        (["--servers", "0"], "--servers must be in 1 .. 16"),
        (["--servers", "17"], "--servers must be in 1 .. 16"),
        (["--out", "/proc/demo-out"], "cannot write to --out /proc/demo-out"),
        (["--batch-size", "0"], "--batch-size must be at least 1"),
        (["--bits", "9"], "bits"),
        (["--workers", "65"], "at most 64 workers"),
        (["--granularity", "0"], "granularity"),
        (["--loss-tolerant", "--granularity", "x"], "an integer or 'auto'"),
    ],
)
def test_demo_refuses_what_cannot_work(arguments: list[str], message: str) -> None:
    result = runner.invoke(app, ["demo", *arguments])
    assert result.exit_code in (1, 2)
    assert message in result.stderr


PROGRAM = """
from rich.table import Table
from byteps_thc._cli.consoles import table_console
table = Table("check", "what it means")
table.add_row("path", "/long" * 60)
table_console().print(table)
"""


@pytest.mark.parametrize(("columns", "whole"), [(None, True), ("60", False)])
def test_a_row_is_one_line_for_grep(columns: str | None, whole: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment |= {} if columns is None else {"COLUMNS": columns}
    printed = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert ("/long" * 60 in printed) is whole
