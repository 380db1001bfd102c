"""The committed tables: a file per width of codes, a table in JSON per line, written by scripts/generate_tables.py.

Machines may round the solver's costs differently, so "auto" chooses among tables that are the same everywhere.
"""

import json
from functools import lru_cache
from pathlib import Path

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._scheme.adding.tables.lookup_table import LookupTable

#: The paper's grid: granularities up to 51 (appendix on the lookup table), p from 1/16 to 1/1024, and 1/8 for 2 bits.
GRID_BITS = (2, 3, 4, 5)
GRID_MAX_GRANULARITY = 51
GRID_P = tuple(1 / (1 << k) for k in range(3, 11))


def directory() -> Path:
    """Return the folder of the committed tables: in the installed package, or the checkout's tables/."""
    installed = Path(__file__).parent / "data"
    return installed if installed.is_dir() else Path(__file__).parents[4] / "tables"


def file_name(bits: int) -> str:
    return f"b{bits}.jsonl"


def to_json(table: LookupTable) -> str:
    """Return a table as a line of a table file. The cost has 10 digits, fewer than machines disagree about."""
    cost = float(f"{table.cost:.9e}")
    fields = {"bits": table.bits, "granularity": table.granularity, "p": table.p, "cost": cost, "values": table.values}
    return json.dumps(fields) + "\n"


@lru_cache
def committed(bits: int) -> tuple[LookupTable, ...]:
    """Return the committed tables of that many bits, by granularity, then p; empty without any."""
    if bits not in GRID_BITS:
        return ()
    path, place, tables = directory() / file_name(bits), "", []
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() or [""], 1):
            place = f":{number}"
            fields = json.loads(line)
            tables.append(LookupTable(**fields | {"values": tuple(fields["values"])}))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"{path}{place} is not a lookup table ({error}): install again") from error
    return tuple(tables)
