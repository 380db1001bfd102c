"""A rank whose front ends load checkpoints of the version before ranks decoded each other's codes, with residuals and
without.

Reports for every front end and kind of checkpoint: what was logged, counters before, loaded and a step later, and what
dcp.load without byteps_thc.checkpoint.load says.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from error_of import error_of
from log_lines import log_lines
from ranks import Rank, joined_rank

from byteps_thc._engine.saved_state import sealed
from byteps_thc.checkpoint import checkpointable, load

sys.path.insert(0, str(Path(__file__).parent))

from damaged_rank import EARLIER_CONFIG, FRONT_ENDS, State

ROUND, STEP = 40, 20


class Earlier:
    """A state as that version has saved it."""

    def __init__(self, state: State, residuals: dict[str, torch.Tensor]) -> None:
        counters = {"round": ROUND, "step": STEP}
        self._state = sealed(state | counters | {"config": EARLIER_CONFIG, "residuals": residuals})

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def load_state_dict(self, _: Mapping[str, Any]) -> None:
        raise AssertionError("this version is gone")


def run(rank: Rank, name: str) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for kind in ("with residuals", "without"):
        handle, step = FRONT_ENDS[name](rank)
        step()
        before = handle.state_dict()
        sizes = handle.parameter_sizes if kind == "with residuals" else {}
        residuals = {parameter: torch.full((size,), 1.0 + rank.rank) for parameter, size in sizes.items()}
        folder = rank.directory / f"{name} {kind}"
        dcp.save({"thc": checkpointable(Earlier(before, residuals))}, checkpoint_id=folder)
        alone = error_of(lambda handle=handle, folder=folder: dcp_load(handle, folder))
        unchanged = handle.state_dict() == before
        with log_lines() as lines:
            load(handle, folder)
        loaded = handle.state_dict()
        step()
        after = handle.state_dict()
        report[kind] = {
            "dcp alone": alone,
            "unchanged": unchanged,
            "lines": [line for line in lines if "residuals" in line],
            "kept": {key: before[key] == loaded[key] for key in ("config", "worker", "workers")},
            "loaded": [loaded["round"], loaded["step"], "residuals" in loaded],
            "rounds": [before["round"], after["round"]],
        }
        handle.close()
    return report


def dcp_load(handle: Any, folder: Path) -> None:
    dcp.load({"thc": checkpointable(handle)}, checkpoint_id=folder)


def main() -> None:
    torch.set_num_threads(1)
    with joined_rank() as rank:
        names = [name for name in FRONT_ENDS if name != "ddp server"]
        report = {name: run(rank, name) for name in names}
        dist.barrier()
        rank.report(report)


if __name__ == "__main__":
    main()
