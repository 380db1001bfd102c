"""The BytePS snippets of the documents run under bpslaunch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from byteps_lab import BytepsLab
from markdown_snippets import python_snippets

from byteps_thc._cli.launch import ParameterServer

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("snippet_byteps.py")
GUIDE = python_snippets(ROOT / "docs/plugins.md")
PLUGINS, SEVERAL_OPTIMIZERS = GUIDE["BytePS"][0], GUIDE["Several optimizers"][0]
#: appended to the script of the plug-in guide
MIGRATION = "\n".join(
    [PLUGINS, *python_snippets(ROOT / "docs/migration.md")["What byteps_thc.torch refuses, and byteps.torch does not"]]
)


@pytest.mark.byteps
@pytest.mark.parametrize("snippet", [PLUGINS, SEVERAL_OPTIMIZERS, pytest.param(MIGRATION, marks=pytest.mark.slow)])
def test_snippet_trains(snippet: str, tmp_path: Path, thc_ps: ParameterServer) -> None:
    code = tmp_path / "snippet.py"
    code.write_text(snippet, encoding="utf-8")
    with BytepsLab(tmp_path, workers=2, environment={"THC_SERVERS": thc_ps.address}) as lab:
        lab.start(PROGRAM, str(code))
        workers = lab.wait(100)
        assert [worker.status for worker in workers] == [0, 0], lab.outputs()
    # A number, not a line: Python writes the end of the line by itself, and BytePS's threads may print before it.
    first, second = (re.search(r"parameters ([-+.\de]+)", worker.output) for worker in workers)
    assert first is not None
    assert second is not None
    assert first[1] == second[1]
