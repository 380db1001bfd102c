"""Lookup tables: optimal solver, choice of granularity and clamp, and the committed tables."""

from byteps_thc._scheme.tables.lookup_table import LookupTable, solve_grid
from byteps_thc._scheme.wire.layout import CODE_BITS

__all__ = ["CODE_BITS", "LookupTable", "solve_grid"]
