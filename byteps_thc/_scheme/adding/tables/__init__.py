"""Lookup tables: the integers of the codes that servers add.

The folder tables/ of the repository has the solved tables.
"""

from byteps_thc._base.wire.layout import CODE_BITS
from byteps_thc._scheme.adding.tables.lookup_table import LookupTable, solve_grid

__all__ = ["CODE_BITS", "LookupTable", "solve_grid"]
