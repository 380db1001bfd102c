import subprocess
import sys
from pathlib import Path

import pytest

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._scheme.adding.tables import store

SCRIPT = Path(__file__).parents[2] / "scripts/generate_tables.py"


def test_committed_tables_are_up_to_date():
    run = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_the_grid_is_complete():
    tables = [table for bits in store.GRID_BITS for table in store.committed(bits)]
    assert len(tables) == 8 * (49 + 45 + 37 + 21)
    assert len({(table.bits, table.granularity, table.p) for table in tables}) == len(tables)


def test_tables_are_ordered_by_granularity_then_p():
    for bits in store.GRID_BITS:
        keys = [(table.granularity, table.p) for table in store.committed(bits)]
        assert keys == sorted(keys)


def test_widths_without_committed_tables_have_none():
    assert store.committed(8) == ()


@pytest.mark.parametrize("damage", ['{"bits": 2', "[]", "{}", '{"bits": 2, "values": [0, 1]}', ""])
def test_a_damaged_line_is_named(damage, tmp_path, monkeypatch):
    line = store.to_json(store.committed(2)[0])
    (tmp_path / store.file_name(2)).write_text(line + damage + "\n" + line)
    monkeypatch.setattr(store, "directory", lambda: tmp_path)
    with pytest.raises(ConfigurationError, match=r"jsonl:2 is not a lookup table \(.*\): install again"):
        store.committed.__wrapped__(2)
    (tmp_path / store.file_name(2)).write_text("")
    with pytest.raises(ConfigurationError, match=r"jsonl:1 is not a lookup table"):
        store.committed.__wrapped__(2)
    (tmp_path / store.file_name(2)).unlink()
    with pytest.raises(ConfigurationError, match=r"jsonl is not a lookup table \(.*No such file.*\): install again"):
        store.committed.__wrapped__(2)
