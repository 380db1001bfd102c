"""Apply small faults one at a time and see that the tests of make test find them (make mutation-check).

python tests/mutation/check.py [-k WORD] [--list] tries the faults of faults/*.toml in a copy of the working tree,
build/mutation. Tests run once without a fault first: a fault only counts as found by tests that pass without it. If one
run finds all faults, it writes build/mutation/build/found.md.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from datetime import date

import runs
import scratch
from faults import Fault, ListError, load

PAGE = scratch.ROOT / "build" / "found.md"
INTRODUCTION = """# Faults that the tests find

Written by `make mutation-check`: each of these small faults, applied alone, was found by a test of `make test`. The
changed lines, and the tests that ran, are in `tests/mutation/faults`. "By deadline": the test's own deadline ended it.

{count} faults, {date}, commit {commit}.

| component | fault | in | found by |
| --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Outcome:
    """The result of one fault.

    found_by: file of the first test that failed; None: no test did. test: its name, or the reason for none.
    by_deadline: the test's own deadline ended it.
    """

    fault: Fault
    found_by: str | None
    test: str
    by_deadline: bool = False

    def words(self) -> str:
        """Return a line for the log."""
        if self.found_by is None:
            return f"NOT FOUND: {self.test}"
        return f"found by {self.found_by}{' by deadline' if self.by_deadline else ''} ({self.test})"


def prepare(faults: list[Fault]) -> dict[str, runs.Run]:
    """Build the copy and run every test without a fault; return tests that do not pass."""
    _say("building without a fault")
    scratch.configure()
    programs = {test.split()[0] for fault in faults for test in fault.tests if runs.is_program(test)}
    scratch.build(*scratch.USED_FROM_PYTHON, *sorted(programs))
    scratch.make_environment()
    broken = {}
    for test in sorted({test for fault in faults for test in fault.tests}):
        began = time.monotonic()
        result = runs.run(test)
        _say(f"{'passes' if result.has_passed else 'DOES NOT PASS'} without a fault: {test}", began)
        if not result.has_passed:
            print(result.output, flush=True)
            broken[test] = result
    return broken


def try_one(fault: Fault, broken: dict[str, runs.Run]) -> Outcome:
    """Apply a fault and run its tests until one fails."""
    if unusable := [test for test in fault.tests if test in broken]:
        return Outcome(fault, None, f"without the fault {unusable[0]} does not pass")
    with scratch.with_fault(fault):
        try:
            scratch.build(*sorted(_targets(fault)))  # also without the fault before
        except scratch.BuildError as error:
            return Outcome(fault, None, f"did not build: {error}")
        for test in fault.tests:
            result = runs.run(test)
            if result.file is not None:
                return Outcome(fault, result.file, result.test, result.by_deadline)
            if result.why_not is not None:
                return Outcome(fault, None, f"{test}: {result.why_not}\n{result.output[-2000:]}")
    return Outcome(fault, None, f"all of these pass: {'; '.join(fault.tests)}")


def try_all(faults: list[Fault]) -> list[Outcome]:
    """Try faults one after another."""
    broken = prepare(faults)
    outcomes = []
    for fault in faults:
        began = time.monotonic()
        outcomes.append(try_one(fault, broken))
        _say(f"{fault.path}: {outcomes[-1].words()}", began)
    return outcomes


def _targets(fault: Fault) -> set[str]:
    programs = {test.split()[0] for test in fault.tests if runs.is_program(test)}
    return programs | (set() if len(programs) == len(fault.tests) else set(scratch.USED_FROM_PYTHON))


def _say(text: str, began: float | None = None) -> None:
    took = "" if began is None else f"{time.monotonic() - began:5.1f} s"
    print(f"{took:8} {text}", flush=True)


def write_page(outcomes: list[Outcome]) -> None:
    """Write the table of all faults."""
    rows = []
    for outcome in outcomes:
        fault, how = outcome.fault, " by deadline" if outcome.by_deadline else ""
        rows.append(f"| {fault.component} | {fault.breaks} | `{fault.file}` | `{outcome.found_by}`{how} |\n")
    top = INTRODUCTION.format(count=len(rows), date=f"{date.today()}", commit=scratch.commit())
    PAGE.write_text(top + "".join(rows), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", dest="word", default="", help="only faults with this in COMPONENT/NAME")
    parser.add_argument("--list", action="store_true", help="list the faults and try none")
    arguments = parser.parse_args()
    all_faults = load()
    faults = [fault for fault in all_faults if arguments.word in fault.path]
    if not faults:
        sys.exit(f"mutation-check: no fault has {arguments.word} in its name")
    if arguments.list:
        for fault in faults:
            print(f"{fault.path}: {fault.breaks}")
        return 0
    if stale := [problem for fault in faults if (problem := fault.why_stale(scratch.REPOSITORY)) is not None]:
        raise ListError("\n".join(stale))
    scratch.refresh()
    outcomes = try_all(faults)
    missed = [outcome.fault.path for outcome in outcomes if outcome.found_by is None]
    _say(f"{len(faults) - len(missed)} of {len(faults)} faults found")
    if missed:
        _say(f"not found: {', '.join(missed)}")
    elif len(faults) == len(all_faults):
        write_page(outcomes)
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ListError, scratch.BuildError) as error:
        sys.exit(f"mutation-check: {error}")
