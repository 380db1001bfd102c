"""The BytePS snippets of the guide run under bpslaunch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from byteps_lab import BytepsLab
from markdown_snippets import started_by

from byteps_thc._cli.launch import ParameterServer

PROGRAM = Path(__file__).with_name("snippet_byteps.py")
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
        lab.start(PROGRAM, str(code))
        workers = lab.wait(100)
        assert [worker.status for worker in workers] == [0, 0], lab.outputs()
    # A number, not a line: Python writes the end of the line by itself, and BytePS's threads may print before it.
    first, second = (re.search(r"parameters ([-+.\de]+)", worker.output) for worker in workers)
    assert first is not None
    assert second is not None
    assert first[1] == second[1]
