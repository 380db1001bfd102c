import json
import subprocess
import sys
from pathlib import Path

import pytest

from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc._scheme.tables import LookupTable, store

SCRIPT = Path(__file__).parents[2] / "scripts/generate_tables.py"
PAPER = {"bits": 2, "granularity": 4, "p": 0.0625, "cost": 0.3, "values": [0, 1, 2, 4]}


def test_committed_tables_are_up_to_date():
    run = subprocess.run([sys.executable, "-P", SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_the_grid_is_complete():
    tables = [table for bits in store.GRID_BITS for table in store.committed(bits)]
    assert len(tables) == 8 * (49 + 45 + 37 + 21)
    assert len({(table.bits, table.granularity, table.p) for table in tables}) == len(tables)


def test_files_round_trip(tmp_path):
    table = LookupTable.paper()
    path = tmp_path / "table.jsonl"
    path.write_text(store.to_json(table))
    (loaded,) = store.load(path)
    assert (loaded.bits, loaded.granularity, loaded.p, loaded.values) == (4, 30, 1 / 32, table.values)
    assert loaded.cost == pytest.approx(table.cost, rel=1e-9)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "list indices"),
        (json.dumps({"bits": 2}), "granularity"),
        (json.dumps(PAPER | {"values": [0, 2, 1, 4]}), "increase strictly"),
        (json.dumps(PAPER | {"values": [0, 1.5, 2, 4]}), "must be integers"),
        (json.dumps(PAPER | {"bits": 3}), "has 8 values"),
        (json.dumps(PAPER | {"p": 2}), "between 0 and 1"),
        (json.dumps(PAPER | {"p": None}), "float"),
    ],
)
def test_damaged_files_are_refused(tmp_path, text, reason):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=reason) as caught:
        store.load(path)
    assert "bad.jsonl" in str(caught.value)


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(PAPER) + "\n" + json.dumps(PAPER | {"values": [0, 2, 1, 4]}) + "\n")
    with pytest.raises(ConfigurationError, match=r"bad\.jsonl:2 is not a lookup table: .* increase strictly"):
        store.load(path)


def test_tables_are_ordered_by_granularity_then_p():
    for bits in store.GRID_BITS:
        keys = [(table.granularity, table.p) for table in store.committed(bits)]
        assert keys == sorted(keys)


def test_widths_without_committed_tables_have_none():
    assert store.committed(8) == ()


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigurationError, match="No such file"):
        store.load(tmp_path / "none.jsonl")
