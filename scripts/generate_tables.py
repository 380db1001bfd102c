"""Write tables/: the optimal lookup table of every (bits, granularity, p) of the paper's grid.

Usage, with byteps_thc installed: python scripts/generate_tables.py [--check]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from byteps_thc._scheme.adding.tables import solve_grid
from byteps_thc._scheme.adding.tables.store import GRID_BITS, GRID_MAX_GRANULARITY, GRID_P, file_name, to_json

ROOT = Path(__file__).resolve().parents[1]


def outputs() -> dict[Path, str]:
    tables = solve_grid(GRID_BITS, range(3, GRID_MAX_GRANULARITY + 1), sorted(GRID_P))
    return {
        ROOT / "tables" / file_name(bits): "".join(to_json(table) for table in tables if table.bits == bits)
        for bits in GRID_BITS
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 when a file differs")
    check = parser.parse_args().check
    files = outputs()
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    unknown = [path for path in (ROOT / "tables").rglob("*.json*") if path not in files]
    for path in stale if check else []:
        print(f"{path.relative_to(ROOT)} is out of date: run scripts/generate_tables.py", file=sys.stderr)
    for path in unknown:
        print(f"{path.relative_to(ROOT)} is not in the grid: delete it", file=sys.stderr)
    if check:
        return 1 if stale or unknown else 0
    for path in stale:
        path.write_text(files[path])
    print(f"{len(files)} files, {len(stale)} written")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
