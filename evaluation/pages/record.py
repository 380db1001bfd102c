"""The result of a claim, with time and machine, as a file."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pages.claim import Claim, Result


@dataclass(frozen=True)
class Record:
    """machine: date, commit and hardware, in words. note: a sentence beside the results (default: none)."""

    claim: str
    quick: bool
    machine: str
    minutes: float
    result: Result
    note: str = ""

    @classmethod
    def read(cls, path: Path) -> "Record":
        found: dict[str, Any] = json.loads(path.read_text())
        return cls(**{**found, "result": Result.of(found["result"])})

    def write(self, path: Path) -> None:
        """Write by renaming, so that a file is whole or absent."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self), indent=1, allow_nan=False) + "\n")
        partial.rename(path)


def measured(claim: Claim, quick: bool, machine: str) -> Record:
    """Measure a claim."""
    start = time.monotonic()
    result = claim.measure(quick)
    return Record(claim.name, quick, machine, round((time.monotonic() - start) / 60, 1), result)
