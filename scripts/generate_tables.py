"""Write tables/: the optimal lookup table of every (bits, granularity, p) of the paper's grid.

Usage, with byteps_thc installed: python scripts/generate_tables.py [--check]
"""

from pathlib import Path

from generated import ROOT, main

from byteps_thc._scheme.adding.tables import solve_grid
from byteps_thc._scheme.adding.tables.store import GRID_BITS, GRID_MAX_GRANULARITY, GRID_P, file_name, to_json


def outputs() -> dict[Path, str]:
    tables = solve_grid(GRID_BITS, range(3, GRID_MAX_GRANULARITY + 1), sorted(GRID_P))
    return {
        ROOT / "tables" / file_name(bits): "".join(to_json(table) for table in tables if table.bits == bits)
        for bits in GRID_BITS
    }


if __name__ == "__main__":
    main(outputs, __doc__, (ROOT / "tables").rglob("*.json*"))
