import json

import numpy as np
import pytest
from typer.testing import CliRunner

from byteps_thc._cli.tables.cli import app
from byteps_thc._scheme.tables import LookupTable, store
from byteps_thc._scheme.tables.points import lloyd_max, staggered
from byteps_thc._scheme.tables.selection import best_table


def run(*arguments: str, columns: int = 120) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.output


def test_show_prints_the_table():
    assert "0 3 5 7 9 11 13 14 15 17 19 21 23 25 27 30" in run("show")
    assert " 0 1 2 4 " in run("show", "-b", "2", "-g", "4", "-p", "1/16")


def test_list_has_all_committed_tables():
    rows = [line.split() for line in run("list", columns=300).splitlines() if line[0].isdecimal()]
    tables = [table for bits in store.GRID_BITS for table in store.committed(bits)]
    assert [(row[0], row[1], row[2], row[5:]) for row in rows] == [
        (str(table.bits), str(table.granularity), f"1/{1 / table.p:g}", [*map(str, table.values)]) for table in tables
    ]
    result = CliRunner().invoke(app, ["list", "-b", "8"], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert "--bits must be 2, 3, 4 or 5: thc tables show computes other tables" in result.output


def test_auto_equals_the_library():
    table = best_table(4, 12)
    assert json.loads(run("auto", "-n", "12", "--json"))["values"] == list(table.values)
    assert "good for up to" in run("auto", "-n", "12")
    assert "good for up to 64 workers" in run("auto", "-n", "12", "--value-bits", "16")


@pytest.mark.parametrize(("bits", "nmse"), [(3, 72.6e-3), (4, 19.3e-3), (5, 4.97e-3)])
def test_auto_shows_the_error_of_averages_among_ranks(bits, nmse):
    """Errors as simulated for four ranks with independent normal gradients."""
    asked = ("auto", "-n", "4", "-b", str(bits), "--engine", "collective")
    report = json.loads(run(*asked, "--json"))
    assert report["nmse"] == pytest.approx(nmse, rel=0.04)
    assert report["up"]["bits"] == report["down"]["bits"] == bits
    np.testing.assert_allclose(report["up"]["points"], [staggered(bits, rank, 4).points for rank in range(4)])
    np.testing.assert_allclose(report["down"]["points"], [lloyd_max(bits).points])
    assert f"average of 4: {report['nmse']:.4e} (independent gradients); {2 * bits} bits both ways" in run(*asked)


def test_bits_down_may_differ_from_bits_up():
    errors = {
        down: json.loads(run("auto", "-n", "4", "--engine", "collective", "--down-bits", str(down), "--json"))
        for down in (4, 5, 8)
    }
    assert {down: (each["up"]["bits"], each["down"]["bits"]) for down, each in errors.items()} == {
        4: (5, 4), 5: (5, 5), 8: (5, 8)
    }  # fmt: skip
    assert errors[4]["nmse"] > errors[5]["nmse"] > errors[8]["nmse"] > errors[8]["up"]["nmse"]


@pytest.mark.parametrize("workers", [65, 256, 1024])
def test_only_ranks_average_for_so_many(workers):
    shown = run("auto", "-n", str(workers), "-b", "4")
    assert f"average of {workers}: " in shown
    assert shown == run("auto", "-n", str(workers), "-b", "4", "--engine", "collective")
    result = CliRunner().invoke(app, ["auto", "-n", str(workers), "--engine", "network"], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert "thc-ps sums for at most 64 workers" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--down-bits", "5"], "servers and switches send sums"),
        (["--value-bits", "8", "--engine", "collective"], "value_bits: only for servers and switches"),
        (["--no-error-feedback", "--engine", "collective"], "error_feedback: only for servers and switches"),
        (["--rounding", "stratified", "--engine", "collective"], "rounding: only for servers and switches"),
    ],
)
def test_options_of_the_other_engine_are_refused(arguments, words):
    result = CliRunner().invoke(app, ["auto", "-n", "4", *arguments], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert words in result.output


def test_auto_says_what_8_bit_sums_cost_more_workers_than_have_all_levels():
    cost = "20 workers 13 of 16 levels: NMSE 1.7635e-02; 1.0742e-02 with 16-bit sums, and 1.2443e-02 with 17 workers"
    with_feedback = (
        "20 workers 13 of 16 levels: NMSE 1.7333e-02; 1.1173e-02 with 16-bit sums, and 1.2301e-02 with 17 workers"
    )
    shown = run("auto", "-n", "20", "--error-feedback", columns=300)
    assert with_feedback in " ".join(shown.split())
    for asked in ([], ["--value-bits", "8"]):
        assert cost in " ".join(run("auto", "-n", "20", *asked, columns=300).split())
    for unasked in (["-n", "17"], ["-n", "20", "--engine", "collective"], ["-n", "20", "--value-bits", "16"]):
        assert "levels" not in run("auto", *unasked)


def test_show_prints_the_error_of_one_worker_and_of_an_average():
    table = LookupTable.paper()
    shown = run("show", "-n", "8")
    assert f"{table.cost + table.clamp_cost:.4e}" in shown
    assert f"{table.average_cost(8) + table.clamp_cost:.4e} (stratified rounding" in shown
    assert f"{table.cost + table.clamp_cost:.4e} (independent" in run("show", "-n", "8", "--rounding", "independent")
    assert "average" not in run("show", "-n", "1")


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "-g", "-1"),
        ("show", "-p", "x"),
        ("show", "-g", "70000"),
        ("auto", "-n", "0"),
        ("auto", "-n", "1025"),
        ("auto", "-n", "4", "--value-bits", "7"),
    ],
)
def test_bad_input_is_a_usage_error(arguments):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 2
    assert "Traceback" not in result.output
