"""The BytePS snippets of the guide run under bpslaunch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from byteps_lab import BytepsLab
from markdown_snippets import text_before

from byteps_thc._cli.launch import ParameterServer

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("snippet_byteps.py")
GUIDE = ROOT / "docs/byteps.md"


def scripts(page: Path) -> list[str]:
    """Return the scripts of a page, and each with what is to be appended to it."""
    whole: list[list[str]] = []
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL):
        if "bps.init()" in block:
            whole.append([block])
        elif "Append" in text_before(page, block):
            whole[-1].append(block)
        else:
            pytest.fail(f"{page.name}: neither a script, nor to be appended to one:\n{block}")
    return [text for parts in whole for text in dict.fromkeys((parts[0], "\n".join(parts)))]


STEP, STEP_AND_MORE, SEVERAL_OPTIMIZERS = scripts(GUIDE)


@pytest.mark.byteps
@pytest.mark.parametrize("snippet", [STEP, SEVERAL_OPTIMIZERS, pytest.param(STEP_AND_MORE, marks=pytest.mark.slow)])
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
