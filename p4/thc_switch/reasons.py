"""Why packets ended: the elements of the counter `reasons`, read from the P4 programs' own include/reasons.p4."""

from __future__ import annotations

import re
from functools import cache

from thc_switch.programs import INCLUDE_FOLDER

_SOURCE = INCLUDE_FOLDER / "reasons.p4"
_CONSTANT = re.compile(r"^const bit<8> REASON_(\w+) = (\d+);", re.MULTILINE)


@cache
def reasons() -> dict[str, int]:
    """Return name to index, in the order of the source; without `none`."""
    found = {name.lower(): int(index) for name, index in _CONSTANT.findall(_SOURCE.read_text())}
    del found["none"]
    return found
