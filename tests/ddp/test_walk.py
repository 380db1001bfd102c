"""byteps_thc/_engine/README.md lists the files that a DDP bucket visits, in order, and none is visited twice."""

import graphlib
import re
from pathlib import Path

import pytest

from byteps_thc._cli.launch import ParameterServer
from thc_lab.ranks import run_ranks

HERE = Path(__file__).parent
ROAD = (HERE.parents[1] / "byteps_thc/_engine/README.md").read_text().split("## A bucket's road")[1]
#: They count, or measure time.
COUNTING = ("_engine/statistics.py", "_net/transport.py")


def listed(road: str) -> list[str]:
    """Return the files of a road, as the README lists them."""
    match = re.search(rf"^- {road}: (.*?)\.$", ROAD, re.MULTILINE | re.DOTALL)
    assert match is not None
    return re.findall(r"`(.*?)`", match[1])


@pytest.mark.parametrize(("road", "ranks"), [("ranks", 2), ("servers", 2), ("levels", 4)])
def test_a_bucket_visits_the_listed_files_and_none_twice(
    road: str, ranks: int, tmp_path: Path, thc_ps: ParameterServer
) -> None:
    settings = {"road": road, "servers": [thc_ps.address]}
    for report in run_ranks(HERE / "walk_rank.py", ranks, tmp_path, settings=settings):
        visited = [name for name in report["files"] if not name.startswith(COUNTING)]
        # Without their order: the threads are still at an earlier bucket when watching begins.
        assert sorted(visited) == sorted(listed(road))
        # Threads of both engines.
        runs_both_levels = {"_engine/stages.py"} if road == "levels" else set()
        # A file that is called by one that it calls would be visited on two stretches of the road.
        called_by: dict[str, set[str]] = {name: set() for name in visited}
        for caller, called in report["calls"]:
            if {caller, called} <= called_by.keys() and caller != called and called not in runs_both_levels:
                called_by[called].add(caller)
        graphlib.TopologicalSorter(called_by).prepare()  # CycleError
