"""The snippets of the documents run, as they stand there, alone or appended to what the text before them names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from markdown_snippets import guide_snippets, python_snippets, text_before
from ranks import run_ranks

from byteps_thc._cli.launch import ParameterServer

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("snippet_rank.py")
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README, GUIDE = python_snippets(ROOT / "README.md"), guide_snippets()
MIGRATION = python_snippets(ROOT / "docs/migration.md")
[TESTBED] = python_snippets(ROOT / "docs/testbed.md")["The description"]
README_DDP, README_FSDP, README_BYTEPS, README_REDUCER, README_WORKER = README["In one line"]
DDP = GUIDE["DDP"][0]
REDUCER, FRAGMENTS, REDUCER_WITH_SERVERS = GUIDE["Anything else: ThcReducer"]
#: Scripts for torchrun, by their snippets.
SCRIPTS = {
    "readme_ddp": [README_DDP],
    "readme_fsdp2": [README_FSDP],
    "readme_reducer": [README_REDUCER],
    "ddp": [DDP],
    "ddp_over_nodes": GUIDE["DDP over nodes"],
    "fsdp2": GUIDE["FSDP2"],
    "hsdp": GUIDE["HSDP"],
    "excluded": GUIDE["Excluding parameters by name"],
    "rows": GUIDE["Rows of embeddings"],
    "checkpoints": [DDP, *GUIDE["Checkpoints"]],
    "synchronisation": [DDP, *GUIDE["Loss tolerance and quorum"]],
    "statistics": [DDP, *GUIDE["Statistics"]],
    "reducer": [REDUCER],
    "fragments": [REDUCER, FRAGMENTS],
}
#: Lines of examples, which tests/examples/test_frameworks.py runs.
IN_EXAMPLES = {
    "Accelerate": "train_accelerate.py",
    "Lightning": "train_lightning.py",
    "Trainer of transformers": "train_trainer.py",
    "torchft": "diloco_torchft.py",
    "torchtitan": "train_torchtitan.py",
    "Elastic training": "train_elastic.py",
}
OF_EXAMPLES = [snippet for heading in IN_EXAMPLES for snippet in GUIDE[heading]]
#: test_byteps_snippets.py runs them.
WITH_BYTEPS = [
    README_BYTEPS,
    *GUIDE["BytePS"],
    *GUIDE["Several optimizers"],
    *(snippet for snippets in MIGRATION.values() for snippet in snippets),
]
#: tests/test_readme.py, and below
WITH_SERVER = [README_WORKER, REDUCER_WITH_SERVERS]
#: tests/lab/testbed/test_docs.py
WITH_TESTBED = [TESTBED]


def write_scripts(directory: Path) -> dict[str, str]:
    """Files of SCRIPTS."""
    for name, parts in SCRIPTS.items():
        (directory / f"{name}.py").write_text("\n".join(parts), encoding="utf-8")
    return {name: str(directory / f"{name}.py") for name in SCRIPTS}


def imports_from_the_clone() -> dict[str, str]:
    """Variables with which a program imports what a script saved in the clone's folder does: the source folder."""
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/lib")])}


def test_no_snippet_is_left_out() -> None:
    run = {snippet for parts in SCRIPTS.values() for snippet in parts} | {*WITH_BYTEPS, *WITH_SERVER, *WITH_TESTBED}
    run |= set(OF_EXAMPLES)
    snippets = {snippet for file in DOCUMENTS for parts in python_snippets(file).values() for snippet in parts}
    assert snippets == run


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_is_appended_is_said_to_be(document: Path) -> None:
    """A script makes its process group; anything else is appended to one, and the text says so."""
    for snippets in python_snippets(document).values():
        for snippet in set(snippets) - set(OF_EXAMPLES):
            whole = any(word in snippet for word in ("init_process_group", "bps.init()", "sys.argv"))
            assert whole != ("appended to" in text_before(document, snippet)), snippet


@pytest.mark.parametrize(("heading", "example"), IN_EXAMPLES.items())
def test_what_is_shown_of_an_example_stands_in_it(heading: str, example: str) -> None:
    """Its lines, in their order, whatever is between them or before them on the line."""
    text = (ROOT / "docs/examples" / example).read_text(encoding="utf-8")
    in_order = [line.strip() for line in text.splitlines()]
    for snippet in GUIDE[heading]:
        place = 0
        for line in filter(None, map(str.strip, snippet.splitlines())):
            assert line in in_order[place:], line
            place = in_order.index(line, place) + 1


@pytest.mark.parametrize("place", ["elsewhere", pytest.param("in the clone", marks=pytest.mark.slow)])
def test_snippets_average_gradients(place: str, tmp_path: Path) -> None:
    in_clone = place == "in the clone"
    scripts = write_scripts(tmp_path)
    settings: dict[str, Any] = {
        "scripts": scripts,
        "package": str(ROOT / "byteps_thc") if in_clone else sysconfig.get_path("platlib"),
    }
    environment = imports_from_the_clone() if in_clone else {}
    reports = run_ranks(PROGRAM, 2, tmp_path / "ranks", settings=settings, timeout_s=200, environment=environment)
    assert reports == [list(scripts)] * 2


def test_the_first_snippet_runs_with_the_command_that_the_readme_shows(tmp_path: Path) -> None:
    command = "torchrun --standalone --nproc-per-node 2 step.py"
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")
    (tmp_path / "step.py").write_text(README_DDP, encoding="utf-8")
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
    assert len(ratios) == 2, result.stdout
    assert min(ratios) > 4


@pytest.mark.parametrize("place", ["elsewhere", "in the clone"])
def test_reducer_without_a_process_group(place: str, thc_ps: ParameterServer, tmp_path: Path) -> None:
    assert '"127.0.0.1"' in REDUCER_WITH_SERVERS
    script = tmp_path / "reduce.py"
    script.write_text(REDUCER_WITH_SERVERS.replace("127.0.0.1", thc_ps.address), encoding="utf-8")
    command = [sys.executable, "-P", str(script)]
    environment = os.environ | (imports_from_the_clone() if place == "in the clone" else {})
    workers = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True, env=environment) for rank in range(2)
    ]
    try:
        first, second = (worker.communicate(timeout=60)[0] for worker in workers)
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0]
    assert first == second != ""
