"""The page has the measured results, and every measurement can be repeated."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import diagrams
import pytest
from pages import page
from pages.claim import NAMES, Check, Claim, Drawn, Plot, Result, Series, Table, claim_of
from pages.plots import draw
from pages.record import Record, measured
from pages.style import style_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "evaluation/results"
EVALUATE = ROOT / "evaluation/evaluate.py"


@pytest.fixture
def claims() -> list[Claim]:
    return [claim_of(name) for name in NAMES]


def test_every_claim_was_measured(claims: list[Claim]) -> None:
    assert [claim.name for claim in claims] == list(NAMES)
    assert {path.stem for path in RESULTS.glob("*.json")} == set(NAMES)
    for claim in claims:
        record = Record.read(RESULTS / f"{claim.name}.json")
        assert record.claim == claim.name
        assert not record.quick
        assert record.result.checks
        assert all(check.met or check.why for check in record.result.checks), claim.name
        assert record.minutes <= 4 * claim.minutes


def test_page_is_of_the_results(claims: list[Claim], tmp_path: Path) -> None:
    """Written anew it is the same, plots included."""
    for document in page.DOCUMENTS:
        (tmp_path / document).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / document).write_text((ROOT / document).read_text())
    page.write(tmp_path, [(claim, Record.read(RESULTS / f"{claim.name}.json")) for claim in claims])
    for document in page.DOCUMENTS:
        assert (tmp_path / document).read_text() == (ROOT / document).read_text(), "run: make evaluate ARGS=--page"
    plots = {path.name for path in (tmp_path / "evaluation/figures").iterdir()}
    assert plots == {path.name for path in (ROOT / "evaluation/figures").iterdir()}
    shown = re.findall(r"\(figures/([\w.-]+)\)", (ROOT / page.PAGE).read_text())
    assert plots == set(shown)


def result() -> Result:
    checks = [Check("a", "<= 1", ".5", met=True), Check("b", "<= 1", "2", met=False, why="it is | so")]
    series = [Series("THC, 4 bits", [1, 2], [3, 4], [0.1, 0.1]), Series("bf16", [1, 2], [5, 6])]
    plots = [Plot("lines", "A title", "x [MB]", "y", series), Plot("bars", "A title", "x", "y", series, bars=True)]
    return Result(checks, [Table("Step", [["a", "b"], ["1", "2"]])], plots, {"some": [1, 2]})


def test_record_is_kept_and_read_again(tmp_path: Path) -> None:
    claim = Claim("some", "Some claim", "2b", "so", "not here", 1, lambda _: result())
    record = measured(claim, True, "a machine")
    record.write(tmp_path / "folder/some.json")
    assert Record.read(tmp_path / "folder/some.json") == record
    assert not list(tmp_path.glob("folder/*.partial"))


def test_result_that_is_not_finite_is_no_result(tmp_path: Path) -> None:
    record = Record("some", False, "a machine", 1.0, Result([], data=float("nan")))
    with pytest.raises(ValueError, match="JSON"):
        record.write(tmp_path / "some.json")
    assert not (tmp_path / "some.json").exists()


def test_lines_of_the_page() -> None:
    claim = Claim("some", "Some claim (n = 4)", "2b", "so", "not here", 1, lambda _: result())
    record = Record("some", False, "a machine", 0.5, result())
    head, _, first, second = page.summary([(claim, record)])
    assert head.count("|") == first.count("|") == second.count("|")
    assert first == "| [Some claim (n = 4)](#some-claim-n--4) | a | <= 1 | .5 | met |"
    assert second == "|  | b | <= 1 | 2 | **not met** |"
    section = page.sections([(claim, record)])
    assert "## Some claim (n = 4)" in section
    assert "`make evaluate ARGS=some`, 0.5 minutes. a machine" in section
    assert "Paper, figure 2b: so." in section
    assert "- b: it is | so" in section
    assert page.stand_ins([(claim, record)]) == ["- Some claim (n = 4): not here"]


def test_all_tables_and_plots_of_the_page_are_small(claims: list[Claim]) -> None:
    for claim in claims:
        result = Record.read(RESULTS / f"{claim.name}.json").result
        assert all(len(plot.series) <= 6 for plot in claim.plots_of(result))
        parts = [part for table in result.tables for part in page.narrow(table.cells)]
        assert all(len(row) <= 6 for part in parts for row in part)


def test_plots_are_drawn_in_part_and_as_ratios() -> None:
    series = [
        Series("THC", [1, 3], [1.0, 0.01]),
        Series("bf16", [0, 2, 3], [5.0, 0.2, 0.1]),
        Series("EDEN", [1], [1.0]),
    ]
    stored = Result([], plots=[Plot("lines", "All", "bits", "NMSE", series)])
    drawn = Drawn({"bf16": "16 bits"}, against="THC", y="NMSE / THC's")
    claim = Claim("some", "Some", "2b", "so", "not here", 1, lambda _: stored, drawn={"lines": drawn})
    [plot] = claim.plots_of(stored)
    [one] = plot.series
    assert (plot.title, plot.y, one.label, one.x) == ("All", "NMSE / THC's", "16 bits", [2, 3])
    assert one.y == pytest.approx([2, 10])  # on a line between logarithms THC has 0.1 at 2
    many = Result([], plots=[Plot("many", "All", "bits", "NMSE", [Series(str(i), [1], [1]) for i in range(7)])])
    with pytest.raises(ValueError, match="many has 7 series"):
        claim.plots_of(many)


def test_document_without_markers_is_named(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("nothing")
    with pytest.raises(ValueError, match=r"page.md has no <!-- summary: make evaluate -->"):
        page.replace(tmp_path / "page.md", "summary", [])
    assert (tmp_path / "page.md").read_text() == "nothing"


def test_same_figures_give_the_same_plot(tmp_path: Path) -> None:
    for plot in result().plots:
        first, again = (draw(plot, tmp_path / name).read_bytes() for name in ("a", "b"))
        assert first == again
        for text in (b"A title", b"THC, 4 bits", b"bf16"):
            assert text in first


def test_bars_are_labelled_with_their_x(tmp_path: Path) -> None:
    series = [Series("fp32", [25.0, 100.0], [1.0, 2.0]), Series("THC", [25.0, 100.0], [3.0, 4.0])]
    text = draw(Plot("bars", "Title", "Gb/s", "ms", series, y_axis="log", bars=True), tmp_path).read_text()
    for label in ("25", "100", "fp32", "THC"):
        assert f">{label}</text>" in text


def test_a_scheme_has_one_color() -> None:
    first, second = style_of("THC, blocks of 4", []), style_of("THC, blocks of 8", ["THC, blocks of 4"])
    assert first["color"] == second["color"]
    assert first["linestyle"] != second["linestyle"]
    assert style_of("fp32", [])["color"] != first["color"]
    with pytest.raises(KeyError, match="unheard of"):
        style_of("unheard of", [])


def test_unknown_claim_is_refused() -> None:
    run = subprocess.run([sys.executable, str(EVALUATE), "no_such"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "unknown claims: no_such; there are error_by_scheme, " in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_quick(name: str) -> None:
    """As make evaluate-quick measures it. Checks that the full result meets, and a minute can show, are met."""
    run = subprocess.run([sys.executable, str(EVALUATE), "--quick", name], capture_output=True, text=True, check=False)
    if "needs root" in run.stderr and os.geteuid() != 0:
        pytest.skip(run.stderr.strip())
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads((ROOT / f"build/evaluation/{name}.json").read_text())
    assert found["quick"]
    assert found["result"]["checks"]


@pytest.mark.parametrize("name", sorted(diagrams.DIAGRAMS))
def test_diagrams_are_as_they_are_drawn(name: str) -> None:
    """python evaluation/diagrams.py writes them; the header is wire.toml's."""
    text = (diagrams.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert text == str(diagrams.DIAGRAMS[name]())
    pages = [ROOT / "README.md", *ROOT.glob("*/*.md"), *ROOT.glob("docs/*/*.md")]
    shown = [path for path in pages if f"diagrams/{name}.svg)" in path.read_text()]
    assert len(shown) == 1


BENCHMARKS = Path(__file__).parents[2] / "evaluation/benchmarks"
_IMPORT = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"


@pytest.mark.slow
def test_every_benchmark_imports_what_it_uses() -> None:
    names = sorted(path.stem for path in BENCHMARKS.glob("*.py"))
    assert "bench_ddp_rank" in names
    command = [sys.executable, "-c", _IMPORT, *names]
    run = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=False, timeout=200)
    assert run.returncode == 0, run.stderr
