"""The model of the protocol, its small configurations; make model-check explores all configurations."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

check = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("check.py"))))
needs_spin = pytest.mark.skipif(check.why_missing() is not None, reason=str(check.why_missing()))


LONG = [pytest.mark.slow, pytest.mark.timeout(1800)]


@needs_spin
@pytest.mark.parametrize(
    "name",
    [
        "reliable",
        "no-bitmap",
        "one-version",
        "trainings",
        "no-run",
        pytest.param("leave-and-return", marks=LONG),
        pytest.param("switch", marks=LONG),
        pytest.param("renewals", marks=LONG),
        pytest.param("restart-keeps-epoch", marks=LONG),
        pytest.param("switch-overtaking", marks=LONG),
        pytest.param("abstained-count", marks=LONG),
        pytest.param("no-renewal", marks=LONG),
        pytest.param("renewed-forgotten", marks=LONG),
    ],
)
def test_checks(name: str) -> None:
    assert check.explore(check.CHECKS[name]).failure_of(check.CHECKS[name]) is None


def test_a_search_that_was_cut_off_is_no_success() -> None:
    complete = check.Outcome(errors=0, states=1, complete=True, violation="", seconds=0)
    cut_off = check.Outcome(errors=0, states=1, complete=False, violation="", seconds=0)
    reliable, mutation = check.CHECKS["reliable"], check.CHECKS["no-bitmap"]
    assert complete.failure_of(reliable) is None
    assert cut_off.failure_of(reliable) is not None
    assert complete.failure_of(mutation) is not None
