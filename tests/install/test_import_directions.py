"""Lab, evaluation and tests import the product, never the reverse and only tests/evaluation imports evaluation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from imported_names import imported

ROOT = Path(__file__).parents[2]
PRODUCT = ("byteps_thc", "worker_dpdk", "ps_software", "p4/thc_switch", "p4/thc_p4_model/src", "scripts")
#: Folders that are on the path of programs outside of the product, or are packages there.
OUTSIDE = ("lab", "evaluation", "tests/lib", "p4/thc_p4_model/tests/lib")


def modules_in(folder: str) -> set[str]:
    """Names by which a program imports what lies in a folder of its path."""
    places = (ROOT / folder).glob("*")
    return {place.stem for place in places if place.suffix == ".py" or (place.is_dir() and any(place.rglob("*.py")))}


@cache
def imported_by(file: Path) -> frozenset[str]:
    """Packages that a Python file imports, under TYPE_CHECKING and in functions, too; "" for relative imports."""
    return frozenset(name.partition(".")[0] for name in imported(file, file.stem))


def python_files(folder: str) -> Iterator[Path]:
    return (ROOT / folder).rglob("*.py")


@pytest.mark.parametrize("folder", PRODUCT)
def test_the_product_imports_neither_lab_nor_evaluation_nor_tests(folder: str) -> None:
    outside = {"lab", "thc_lab", "evaluation", "tests", *(name for place in OUTSIDE for name in modules_in(place))}
    assert {"ranks", "averages"} < outside
    wrong = {
        str(file.relative_to(ROOT)): found for file in python_files(folder) if (found := imported_by(file) & outside)
    }
    assert wrong == {}


@pytest.mark.parametrize("folder", PRODUCT)
def test_sources_in_cpp_include_nothing_of_the_tests(folder: str) -> None:
    sources = [file for suffix in ("*.cc", "*.h") for file in (ROOT / folder).rglob(suffix)]
    headers = {str(file.relative_to(ROOT / "tests")) for file in (ROOT / "tests").rglob("*.h")}
    for file in sources:
        included = set(re.findall(r'^#include "([^"]+)"', file.read_text(encoding="utf-8"), re.MULTILINE))
        assert not included & headers, file


def test_only_its_own_tests_import_evaluation() -> None:
    """Other tests may run its programs, as benchmarks; they import none of its modules."""
    evaluation = modules_in("evaluation")
    assert {"averages", "claims", "pages"} <= evaluation
    wrong = []
    for file in [*python_files("tests"), *python_files("lab")]:
        here = {place.stem for place in file.parent.iterdir()}  # programs import what lies beside them
        if ROOT / "tests/evaluation" not in file.parents and imported_by(file) & evaluation - here:
            wrong.append(str(file.relative_to(ROOT)))
    assert wrong == []
