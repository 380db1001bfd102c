"""The list of faults fits the sources, so that whoever changes them changes it, too; make mutation-check tries them."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"mutation_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


FAULTS = _load("faults").load()


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
