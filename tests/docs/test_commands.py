"""Commands of the pages exist: subcommands and options of thc and thc-ps, targets of make, and files."""

import re
import shlex
import subprocess
from functools import cache

import pytest
import typer
from markdown_snippets import PAGES, ROOT, shell_commands

from byteps_thc._cli.cli import app
from byteps_thc._cli.launch import find_thc_ps

READMES = [ROOT / f"{folder}/README.md" for folder in ("ps_software", "worker_dpdk", "p4", "lab", "tables")]
COMMANDS = [(page, command) for page in [*PAGES, *READMES] for command in shell_commands(page)]


def options_of(words: list[str]) -> list[str]:
    """Return the long options among words, without their values."""
    return [word.partition("=")[0] for word in words if word.startswith("--")]


@cache
def options_of_thc_ps() -> frozenset[str]:
    text = subprocess.run([find_thc_ps(), "--help"], check=True, capture_output=True, text=True, timeout=20).stdout
    return frozenset(re.findall(r"--[a-z][a-z-]+", text))


def check_thc(words: list[str]) -> None:
    """Walk down to the subcommand, and look for its options."""
    command, name = typer.main.get_command(app), "thc"
    while hasattr(command, "list_commands") and words and not words[0].startswith("-"):
        context = command.make_context(name, [], resilient_parsing=True)
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, f"no subcommand {name}"
        command = found
    known = {"--help", *(option for each in command.params for option in (*each.opts, *each.secondary_opts))}
    assert {*options_of(words)} <= known


@pytest.mark.parametrize(
    "command", [command for _, command in COMMANDS], ids=[f"{page.stem}-{command[:40]}" for page, command in COMMANDS]
)
def test_command_exists(command: str) -> None:
    first, *words = shlex.split(command)
    if first == "thc":
        check_thc(words)
    elif first == "thc-ps":
        assert {*options_of(words)} <= options_of_thc_ps()
    elif first == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert {word for word in words if "=" not in word and not word.startswith("-")} <= {*targets}
    for file in re.findall(r"(?<![\w/.-])(?:docs|scripts|evaluation|lab|p4|tests)/[\w/.-]+\.\w+", command):
        assert (ROOT / file).exists(), file


def test_pages_have_commands() -> None:
    assert {shlex.split(command)[0] for _, command in COMMANDS} >= {"thc", "thc-ps", "make", "torchrun", "pip"}
