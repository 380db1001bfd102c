"""The README's program, script, packet test and commands work as described."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from thc_p4_model.__main__ import app

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(section: str) -> list[str]:
    """The code blocks below a heading."""
    text = README.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```\w*\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def run(folder: Path, *command: str) -> str:
    finished = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def test_a_program_of_your_own(tmp_path: Path) -> None:
    program, script, output, stf, command = blocks("A program of your own")
    for name, text in (("forward.p4", program), ("try_forward.py", script), ("forward.stf", stf)):
        assert name in README
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert run(tmp_path, "try_forward.py") == output
    assert run(tmp_path, *shlex.split(command)[1:]) == "passed forward.stf (2 packets)\n"


def test_commands_are_those_there_are() -> None:
    (text,) = blocks("Commands")
    shown = {line.split()[3] for line in text.splitlines()}
    assert shown == {command.callback.__name__ for command in app.registered_commands if command.callback}


def test_links_lead_to_files_and_headings() -> None:
    headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", README, re.MULTILINE)}
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    for link in links:
        path, _, anchor = link.partition("#")
        assert (Path(__file__).parents[1] / path).exists(), link
        assert not anchor or anchor in headings, link
