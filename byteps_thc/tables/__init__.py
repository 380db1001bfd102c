"""Lookup tables: optimal solver, choice of granularity and clamp, and the committed tables."""

from byteps_thc.tables.lookup_table import CODE_BITS, LookupTable, solve_grid

__all__ = ["CODE_BITS", "LookupTable", "solve_grid"]
