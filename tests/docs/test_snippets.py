"""The snippets of the documents run, as they stand there, on two ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from markdown_snippets import python_snippets
from ranks import run_ranks

from byteps_thc.tools.launch import ParameterServer

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("snippet_rank.py")


def imports_from_the_clone() -> dict[str, str]:
    """Variables with which a program imports what a script saved in the clone's folder does: the source folder."""
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/lib")])}


def cases() -> dict[str, list[str]]:
    """Snippets that run one after another, and need no BytePS."""
    plugins, migration = (python_snippets(ROOT / "docs" / name) for name in ("plugins.md", "migration.md"))
    readme = python_snippets(ROOT / "README.md")
    (ddp,) = plugins["DDP"]
    return {
        "ddp": [ddp, *plugins["Checkpoints"], *plugins["Statistics"]],
        "fsdp2": plugins["FSDP2"],
        "hsdp": plugins["HSDP"],
        "baseline": ["ddp = DistributedDataParallel(model)\n" + plugins["Baselines"][0]],
        "from ddp": migration["From plain DDP"][1:],
        "from horovod": migration["From Horovod"][1:],
        "reducer": plugins["Anything else: ThcReducer"][:2],
        "readme": [readme["In one line"][0]],
        "readme fsdp2": [readme["In one line"][1]],
        "readme reducer": [readme["In one line"][3]],
    }


@pytest.mark.parametrize("place", ["elsewhere", "in the clone"])
def test_snippets_average_gradients(place: str, tmp_path: Path) -> None:
    in_clone = place == "in the clone"
    settings = {"cases": cases(), "package": str(ROOT / "byteps_thc") if in_clone else sysconfig.get_path("platlib")}
    environment = imports_from_the_clone() if in_clone else {}
    reports = run_ranks(PROGRAM, 2, tmp_path, settings=settings, timeout_s=110, environment=environment)
    assert reports == [sorted(cases())] * 2


@pytest.mark.parametrize("place", ["elsewhere", "in the clone"])
def test_reducer_without_a_process_group(place: str, thc_ps: ParameterServer, tmp_path: Path) -> None:
    snippet = python_snippets(ROOT / "docs/plugins.md")["Anything else: ThcReducer"][2]
    assert '"10.0.0.1"' in snippet
    script = tmp_path / "reduce.py"
    head, tail = "import sys\nimport torch\nrank = int(sys.argv[1])\n", "x = torch.full((5000,), float(rank))\n"
    tail += 'reducer.all_reduce({"x": x})\nprint(x[:3].tolist())\n'
    script.write_text(head + snippet.replace("10.0.0.1", thc_ps.address) + tail, encoding="utf-8")
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
