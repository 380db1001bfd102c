"""AggregationBlocks: codes to table values, two codes at a time, in every block's own copies of the lookup table."""

from __future__ import annotations

from collections.abc import Iterator

from thc_switch import limits
from thc_switch.controls.base import Control
from thc_switch.plan import TableEntry


class AggregationBlocks(Control):
    """A block adds four codes: `high` looks up its first byte, `low` its second."""

    INSTANCE = "ThcIngress.blocks"
    TABLES = tuple(f"lookup_{block}_{half}" for block in range(limits.BLOCKS) for half in ("high", "low"))

    def entries(self) -> Iterator[TableEntry]:
        """256 pairs of codes in each table; none when there is no job."""
        if not self.deployment.jobs:
            return
        values = self.deployment.jobs[0].table.values  # the same for all jobs: Deployment checks it
        for table in self.TABLES:
            action = table.replace("lookup", "set_values")
            for codes in range(1 << 2 * limits.CODE_BITS):
                first, second = divmod(codes, 1 << limits.CODE_BITS)
                pair = values[first] << limits.VALUE_BITS | values[second]
                yield self.entry(table, {"codes": codes}, action, values=pair)
