"""The model of the protocol, its small configurations; make model-check explores all of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _load_check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("model_check", Path(__file__).with_name("check.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


check = _load_check()
needs_spin = pytest.mark.skipif(check.why_missing() is not None, reason=str(check.why_missing()))


@needs_spin
@pytest.mark.parametrize("name", ["reliable", "no-bitmap", "one-version", "trainings", "no-run"])
def test_fast_checks(name: str) -> None:
    assert check.explore(check.CHECKS[name]).failure_of(check.CHECKS[name]) is None


@needs_spin
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "name",
    [
        "leave-and-return",
        "switch",
        "renewals",
        "restart-keeps-epoch",
        "switch-overtaking",
        "abstained-count",
        "no-renewal",
        "renewed-forgotten",
    ],
)
def test_slower_checks(name: str) -> None:
    assert check.explore(check.CHECKS[name]).failure_of(check.CHECKS[name]) is None


def test_a_search_that_was_cut_off_is_no_success() -> None:
    complete = check.Outcome(errors=0, states=1, complete=True, violation="", seconds=0)
    cut_off = check.Outcome(errors=0, states=1, complete=False, violation="", seconds=0)
    reliable, mutation = check.CHECKS["reliable"], check.CHECKS["no-bitmap"]
    assert complete.failure_of(reliable) is None
    assert cut_off.failure_of(reliable) is not None
    assert complete.failure_of(mutation) is not None
