"""The committed tables: one JSON file per (bits, granularity, p), written by scripts/generate_tables.py.

Machines may round the solver's costs differently; a committed table is the same everywhere, which is why the automatic
choice is made among these.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from byteps_thc.errors import ConfigurationError
from byteps_thc.tables.lookup_table import LookupTable

#: The paper's grid: granularities up to 51 (appendix on the lookup table), p from 1/16 to 1/1024;
#: and 1/8, for 2 bits.
GRID_BITS = (2, 3, 4, 5)
GRID_MAX_GRANULARITY = 51
GRID_P = tuple(1 / (1 << k) for k in range(3, 11))


def directory() -> Path:
    """Return the folder of the committed tables: inside the package when installed, else the checkout's tables/."""
    installed = Path(__file__).parent / "data"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "tables"


def file_name(bits: int, granularity: int, p: float) -> str:
    """Return the path below directory() of a table; p must be 1 / integer."""
    return f"b{bits}/g{granularity}_p{round(1 / p)}.json"


def to_json(table: LookupTable) -> str:
    """Return the text of a table file. The cost has 10 digits, fewer than machines disagree about."""
    fields = {
        "bits": table.bits,
        "granularity": table.granularity,
        "p": table.p,
        "cost": float(f"{table.cost:.9e}"),
        "values": list(table.values),
    }
    return json.dumps(fields) + "\n"


def load(path: Path) -> LookupTable:
    """Read and validate one table file; ConfigurationError names the file and what is wrong with it."""
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
        bits, granularity, values = fields["bits"], fields["granularity"], fields["values"]
        if not all(isinstance(number, int) for number in (bits, granularity, *values)):
            raise ConfigurationError("bits, granularity and values must be integers")
        return LookupTable(bits, granularity, float(fields["p"]), tuple(values), float(fields["cost"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigurationError(f"{path} is not a lookup table: {reason}") from error


@lru_cache
def committed(bits: int) -> tuple[LookupTable, ...]:
    """Return the committed tables of that many bits, ordered by granularity, then p; empty when there are none."""
    tables = [load(path) for path in (directory() / f"b{bits}").glob("*.json")]
    return tuple(sorted(tables, key=lambda table: (table.granularity, table.p)))
