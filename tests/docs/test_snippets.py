"""The snippets of the pages run as they stand there, and print the pages' output."""

import os
import re
import subprocess
import sys
import sysconfig
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from byteps_lab import BytepsLab
from markdown_snippets import PAGES, ROOT, Snippet, page_snippets, started_by

from byteps_thc._cli.launch import ParameterServer
from thc_lab.ranks import run_ranks

PROGRAM = Path(__file__).with_name("snippet_rank.py")
SCRIPTS = {snippet.place: snippet for snippet in started_by("torchrun")}
#: Scripts of two processes and a thc-ps.
PAIRS = started_by("python")
EXAMPLES = started_by("example")


def imports_from_the_clone() -> dict[str, str]:
    """Variables with which a program imports as a script in the clone's folder does: from the source folder."""
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/lib")])}


def with_servers(script: str, servers: ExitStack) -> str:
    """Start a thc-ps for each address of a server in a script, and put its own address there."""
    for given in sorted(set(re.findall(r'"((?:127\.0\.0\.1|10\.0\.0\.\d+)(?::\d+)?)"', script))):
        script = script.replace(f'"{given}"', f'"{servers.enter_context(ParameterServer()).address}"')
    return script


def without_numbers(text: str) -> str:
    """Return text with N in place of each number and one space between words."""
    return " ".join(re.sub(r"[-+]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?", "N", text).split())


def test_pages_have_snippets_of_each_kind() -> None:
    assert len(SCRIPTS) > 10
    assert {snippet.page.stem for snippet in SCRIPTS.values()} >= {"README", "quickstart", "ddp", "fsdp", "checkpoints"}
    assert PAIRS
    assert EXAMPLES
    assert started_by("bpslaunch"), "test_snippet_trains runs them"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_snippet_says_how_to_run_it(page: Path) -> None:
    unsaid = [snippet.block for snippet in page_snippets(page) if not snippet.starter]
    assert not unsaid, "neither a script nor appended to one"


@pytest.mark.parametrize("snippet", EXAMPLES, ids=lambda snippet: snippet.place)
def test_lines_of_examples_stand_in_their_file(snippet: Snippet) -> None:
    """In the order of the file that the block's section names, whatever is between them."""
    sections = re.split(r"^## ", snippet.page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    [section] = [section for section in sections if snippet.block in section]
    [example] = set(re.findall(r"\(examples/(\w+\.py)\)", section))
    in_order = [line.strip() for line in (ROOT / "docs/examples" / example).read_text(encoding="utf-8").splitlines()]
    place = 0
    for line in filter(None, map(str.strip, snippet.block.splitlines())):
        assert line in in_order[place:], f"{line} is not in {example}"
        place = in_order.index(line, place) + 1


@pytest.mark.parametrize("place", ["elsewhere", pytest.param("in the clone", marks=pytest.mark.slow)])
def test_scripts_average_gradients(place: str, tmp_path: Path) -> None:
    in_clone = place == "in the clone"
    with ExitStack() as servers:
        for name, snippet in SCRIPTS.items():
            (tmp_path / f"{name}.py").write_text(with_servers(snippet.script, servers), encoding="utf-8")
        settings: dict[str, Any] = {
            "scripts": {name: str(tmp_path / f"{name}.py") for name in SCRIPTS},
            "package": str(ROOT / "byteps_thc") if in_clone else sysconfig.get_path("platlib"),
        }
        environment = imports_from_the_clone() if in_clone else {}
        reports = run_ranks(PROGRAM, 2, tmp_path / "ranks", settings=settings, timeout_s=240, environment=environment)
    assert [[*report] for report in reports] == [[*SCRIPTS]] * 2
    for name, snippet in SCRIPTS.items():
        if snippet.output:
            assert without_numbers(reports[0][name]).endswith(without_numbers(snippet.output)), name


def test_the_first_snippet_runs_with_the_command_that_the_readme_shows(tmp_path: Path) -> None:
    command = "torchrun --standalone --nproc-per-node 2 step.py"
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")
    first = next(snippet for snippet in SCRIPTS.values() if snippet.page.name == "README.md")
    (tmp_path / "step.py").write_text(first.script, encoding="utf-8")
    result = subprocess.run(
        [str(Path(sys.executable).with_name("torchrun")), *command.split()[1:]],
        cwd=tmp_path,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    ratios = [float(ratio) for ratio in re.findall(r"ratio ([\d.]+)", result.stdout)]
    assert ratios, result.stdout
    assert min(ratios) > 4


@pytest.mark.parametrize("place", ["elsewhere", "in the clone"])
@pytest.mark.parametrize("snippet", PAIRS, ids=lambda snippet: snippet.place)
def test_two_processes_print_the_same_average(snippet: Snippet, place: str, tmp_path: Path) -> None:
    environment = os.environ | (imports_from_the_clone() if place == "in the clone" else {})
    with ExitStack() as stack:
        script = tmp_path / "average.py"
        source = str(ROOT / "byteps_thc")
        check = f"import byteps_thc; assert byteps_thc.__file__.startswith({source!r}) is {place == 'in the clone'}\n"
        script.write_text(with_servers(snippet.script, stack) + check, encoding="utf-8")
        command = [sys.executable, "-P", str(script)]
        workers = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True, env=environment)
            for rank in range(2)
        ]
        try:
            first, second = (worker.communicate(timeout=60)[0] for worker in workers)
        finally:
            for worker in workers:
                worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0]
    averages = [output[: output.index("]")] for output in (first, second)]
    assert averages[0] == averages[1]
    if snippet.output:
        assert without_numbers(first) == without_numbers(snippet.output)


BYTEPS_PROGRAM = Path(__file__).with_name("snippet_byteps.py")
#: Whole scripts, and slowly those with a block appended.
SNIPPETS = [
    pytest.param(snippet.script, id=snippet.place, marks=[] if snippet.script == snippet.block else pytest.mark.slow)
    for snippet in started_by("bpslaunch")
]


@pytest.mark.byteps
@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippet_trains(snippet: str, tmp_path: Path, thc_ps: ParameterServer, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "snippet.py"
    code.write_text(snippet, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with BytepsLab(tmp_path, workers=2, environment={"THC_SERVERS": thc_ps.address}) as lab:
        lab.start(BYTEPS_PROGRAM, str(code))
        workers = lab.wait(100)
        assert [worker.status for worker in workers] == [0, 0], lab.outputs()
    # A number, not a line: Python writes the end of the line by itself, and BytePS's threads may print before it.
    first, second = (re.search(r"parameters ([-+.\de]+)", worker.output) for worker in workers)
    assert first is not None
    assert second is not None
    assert first[1] == second[1]
