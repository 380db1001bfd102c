"""byteps_thc/pipeline/README.md lists the files that a DDP bucket visits, in order, and none is visited twice."""

from __future__ import annotations

import graphlib
import re
from pathlib import Path

from ranks import run_ranks

HERE = Path(__file__).parent
ROAD = (HERE.parents[1] / "byteps_thc/pipeline/README.md").read_text().split("## A bucket's road")[1]
#: They count, or measure time.
COUNTING = ("pipeline/statistics/", "pipeline/figures.py", "pipeline/work_clock.py", "transport/recorder.py")


def test_a_bucket_visits_the_listed_files_in_order_and_none_twice(tmp_path: Path) -> None:
    for report in run_ranks(HERE / "walk_rank.py", 2, tmp_path):
        visited = [name for name in report["files"] if not name.startswith(COUNTING)]
        listed = re.search(r"^- host: (.*?)\.$", ROAD, re.MULTILINE | re.DOTALL)
        assert listed is not None
        assert visited == re.findall(r"`(.*?)`", listed[1])
        # A file that is called by one that it calls would be visited on two stretches of the road.
        called_by: dict[str, set[str]] = {name: set() for name in visited}
        for caller, called in report["calls"]:
            if {caller, called} <= called_by.keys() and caller != called:
                called_by[called].add(caller)
        graphlib.TopologicalSorter(called_by).prepare()  # CycleError
