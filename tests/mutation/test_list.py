"""The list of faults fits the sources: a change of the sources must change it, too. make mutation-check tries it."""

import re
import runpy
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


FAULTS = runpy.run_path(str(Path(__file__).with_name("faults.py")))["load"]()


def test_every_fault_can_be_applied() -> None:
    stale = [problem for fault in FAULTS if (problem := fault.why_stale(ROOT)) is not None]
    assert not stale, "\n".join(stale)


def test_the_tests_that_must_find_them_are_there() -> None:
    programs = set(re.findall(r"(?:thc_add_test|add_executable)\((\w+)", (ROOT / "tests/CMakeLists.txt").read_text()))
    for fault in FAULTS:
        assert fault.new != fault.old, fault.name
        for test in fault.tests:
            first = test.split()[0].strip("'").partition("::")[0]
            assert first in programs or (ROOT / first).is_file(), f"{fault.component}/{fault.name}: no {first}"


def test_all_components_have_some() -> None:
    counts = Counter(fault.component for fault in FAULTS)
    components = {
        "kernels",
        "gpu",
        "slot_pool",
        "session",
        "server",
        "engine",
        "ranks",
        "net",
        "front_ends",
        "p4",
        "agent",
    }
    assert counts.keys() == components
    assert min(counts.values()) >= 3
    assert counts.total() >= 40
