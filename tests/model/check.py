"""Explore the models of the protocol with spin: python tests/model/check.py [NAME...] (make model-check).

Every configuration must be explored completely without an error, and every mutation must be found. Needs spin and a C
compiler. Memory and time are bounded; a search that does not end within them is a failure.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
MEMORY_MIB = 3500
SEARCH_DEPTH = 200_000
TIME_LIMIT_S = 600


@dataclass(frozen=True)
class Check:
    """One search: a configuration, or a configuration without one rule."""

    name: str
    macros: str
    model: str = "protocol.pml"

    @property
    def is_mutation(self) -> bool:
        return "MUTATE_" in self.macros


CONFIGURATIONS = (
    Check("reliable", "ROUNDS=3 LOSSES=2"),
    Check("reliable-stream", "ROUNDS=3 LOSSES=1 TWO_STREAM_SLOTS"),
    Check("quorum", "QUORUM=2 ROUNDS=3 LOSSES=0"),
    Check("quorum-losses", "QUORUM=2 ROUNDS=2 LOSSES=1"),
    Check("quorum-death", "QUORUM=2 ROUNDS=3 LOSSES=0 DEATHS=1"),
    Check("loss-tolerant", "LOSS_TOLERANT=1 ROUNDS=3 LOSSES=0"),
    Check("server-restart", "SERVER_RESTARTS=1 ROUNDS=2 LOSSES=0"),
    Check("server-restart-quorum", "SERVER_RESTARTS=1 QUORUM=2 ROUNDS=1 LOSSES=0"),
    Check("worker-restart", "CRASHES=1 ROUNDS=2 LOSSES=0 ONE_SLOT"),
    Check("both-restart", "CRASHES=1 SERVER_RESTARTS=1 ROUNDS=1 LOSSES=0 ONE_SLOT"),
    Check("leave-and-return", "RETURNS=3 ROUNDS=1 LOSSES=1"),
    Check("switch", "SWITCH ONE_SLOT ROUNDS=3 LOSSES=1"),
    Check("switch-quorum", "SWITCH ONE_SLOT QUORUM=2 ROUNDS=3 LOSSES=0"),
    Check("switch-pass-losses", "SWITCH ONE_SLOT PASS_LOSSES=1 ROUNDS=3 LOSSES=0"),
    Check("renewals", "ROUNDS=7", "epochs.pml"),
    Check("renewals-quorum", "QUORUM=1 ROUNDS=3 EPOCH_ROUNDS=1", "epochs.pml"),
    Check("renewals-worker-restart", "CRASHES=1 ROUNDS=2 EPOCH_ROUNDS=1 EPOCHS=5", "epochs.pml"),
    Check("renewals-server-restart", "SERVER_RESTARTS=1 ROUNDS=2 EPOCH_ROUNDS=1", "epochs.pml"),
    Check("trainings", "CRASHES=0", "trainings.pml"),
    Check("trainings-crashes", "CRASHES=2", "trainings.pml"),
)
MUTATIONS = (
    Check("no-bitmap", "ROUNDS=1 LOSSES=0 MUTATE_NO_BITMAP"),
    Check("one-version", "ROUNDS=2 LOSSES=1 MUTATE_ONE_VERSION"),
    Check("next-round-early", "ROUNDS=3 LOSSES=0 MUTATE_NEXT_ROUND_EARLY"),
    Check("no-round-check", "QUORUM=2 ROUNDS=3 LOSSES=0 MUTATE_NO_ROUND_CHECK"),
    Check("any-round-taken", "ROUNDS=2 LOSSES=0 MUTATE_ANY_ROUND_TAKEN"),
    Check("never-cleared", "ROUNDS=3 LOSSES=0 MUTATE_NEVER_CLEARED"),
    Check("no-replay", "ROUNDS=1 LOSSES=1 MUTATE_NO_REPLAY"),
    Check("late-contributions", "QUORUM=2 ROUNDS=1 LOSSES=0 MUTATE_LATE_CONTRIBUTIONS"),
    Check("stragglers-ignored", "QUORUM=2 ROUNDS=3 LOSSES=0 MUTATE_STRAGGLERS_IGNORED"),
    Check("own-norm", "QUORUM=2 ROUNDS=3 LOSSES=0 MUTATE_OWN_NORM"),
    Check("abstained-count", "QUORUM=2 ROUNDS=3 LOSSES=0 MUTATE_ABSTAINED_COUNT"),
    Check("abstained-complete", "QUORUM=2 ROUNDS=3 LOSSES=0 MUTATE_ABSTAINED_COMPLETE"),
    Check("abstained-unsent", "QUORUM=2 ROUNDS=4 LOSSES=0 MUTATE_ABSTAINED_UNSENT"),
    Check("norms-far-ahead", "QUORUM=2 ROUNDS=3 LOSSES=0 DEATHS=1 MUTATE_NORMS_FAR_AHEAD"),
    Check("no-epoch-check", "CRASHES=1 ROUNDS=1 LOSSES=0 MUTATE_NO_EPOCH_CHECK"),
    Check("epoch-comes-back", "SERVER_RESTARTS=1 CRASHES=1 ROUNDS=1 LOSSES=0 MUTATE_EPOCH_COMES_BACK"),
    Check("late-welcome", "CRASHES=1 SERVER_RESTARTS=1 ROUNDS=1 LOSSES=0 ONE_SLOT MUTATE_LATE_WELCOME"),
    Check("restart-keeps-epoch", "CRASHES=1 ROUNDS=1 LOSSES=0 MUTATE_RESTART_KEEPS_EPOCH"),
    Check("quorum-rejoins", "SERVER_RESTARTS=1 QUORUM=2 ROUNDS=1 LOSSES=0 MUTATE_QUORUM_REJOINS"),
    Check("first-goodbye-ends", "RETURNS=3 ROUNDS=1 LOSSES=1 MUTATE_FIRST_GOODBYE_ENDS"),
    Check("return-at-once", "RETURNS=3 ROUNDS=1 LOSSES=1 MUTATE_RETURN_AT_ONCE"),
    Check("old-hellos", "RETURNS=3 ROUNDS=1 LOSSES=1 MUTATE_OLD_HELLOS"),
    Check("switch-finished-at-check", "SWITCH ONE_SLOT PASS_LOSSES=1 ROUNDS=1 LOSSES=0 MUTATE_FINISHED_AT_CHECK"),
    Check("switch-no-finish-check", "SWITCH ONE_SLOT LOSS_TOLERANT=1 ROUNDS=3 LOSSES=0 MUTATE_NO_FINISH_CHECK"),
    Check("switch-no-room-check", "SWITCH ONE_SLOT QUORUM=2 ROUNDS=1 LOSSES=0 MUTATE_NO_ROOM_CHECK"),
    Check("switch-overtaking", "SWITCH ONE_SLOT LOSS_TOLERANT=1 ROUNDS=3 LOSSES=0 MUTATE_OVERTAKING"),
    Check("no-renewal", "ROUNDS=7 MUTATE_NO_RENEWAL", "epochs.pml"),
    Check("ended-epochs-count", "ROUNDS=7 MUTATE_ENDED_EPOCHS_COUNT", "epochs.pml"),
    Check("any-epochs-result", "ROUNDS=7 MUTATE_ANY_EPOCHS_RESULT", "epochs.pml"),
    Check("renewal-clears-slots", "ROUNDS=7 MUTATE_RENEWAL_CLEARS_SLOTS", "epochs.pml"),
    Check("not-repeated", "ROUNDS=7 MUTATE_NOT_REPEATED", "epochs.pml"),
    Check("ended-epochs-unknown", "QUORUM=1 ROUNDS=3 EPOCH_ROUNDS=1 MUTATE_ENDED_EPOCHS_UNKNOWN", "epochs.pml"),
    Check("renewed-forgotten", "CRASHES=1 ROUNDS=2 EPOCH_ROUNDS=1 EPOCHS=5 MUTATE_RENEWED_FORGOTTEN", "epochs.pml"),
    Check("no-run", "CRASHES=0 MUTATE_NO_RUN", "trainings.pml"),
    Check("own-place-only", "CRASHES=0 MUTATE_OWN_PLACE_ONLY", "trainings.pml"),
    Check("one-is-silent", "CRASHES=1 MUTATE_ONE_IS_SILENT", "trainings.pml"),
    Check("run-kept", "CRASHES=1 MUTATE_RUN_KEPT", "trainings.pml"),
)
CHECKS = {check.name: check for check in (*CONFIGURATIONS, *MUTATIONS)}


@dataclass(frozen=True)
class Outcome:
    """The output of pan for a search."""

    errors: int
    states: int
    complete: bool
    violation: str
    seconds: float

    def failure_of(self, check: Check) -> str | None:
        """Return the difference from the check's expectation; None: none."""
        if check.is_mutation:
            return None if "assertion violated" in self.violation else "the mutation was not found"
        if self.errors != 0:
            return f"found {self.violation}"
        return None if self.complete else "the search was cut off"


def why_missing() -> str | None:
    """Return the programs that this machine lacks for the model checker; None: none."""
    missing = [program for program in ("spin", "cc") if shutil.which(program) is None]
    return f"not on PATH: {', '.join(missing)} (apt-get install spin gcc)" if missing else None


def explore(check: Check) -> Outcome:
    """Generate, compile and run the verifier of one check."""
    with tempfile.TemporaryDirectory(prefix="thc-model-") as folder:
        macros = [f"-D{macro}" for macro in check.macros.split()]
        _call(["spin", "-a", *macros, str(FOLDER / check.model)], folder)
        options = ["-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MIB}"]
        optimization = "-O0" if check.is_mutation else "-O1"  # a mutation is found sooner than compiled
        _call(["cc", optimization, "-w", *options, "-o", "pan", "pan.c"], folder)
        began = time.monotonic()
        log = _call(["./pan", f"-m{SEARCH_DEPTH}"], folder)
    return _read(log, time.monotonic() - began)


def _call(command: list[str], folder: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
    output = done.stdout + done.stderr
    if done.returncode != 0 and "State-vector" not in output:
        raise RuntimeError(f"{command[0]} failed:\n{output}")
    return output


def _read(log: str, seconds: float) -> Outcome:
    errors = re.search(r"errors: (\d+)", log)
    states = re.search(r"(\d+) states, stored", log)
    violation = re.search(r"pan:\d+: (.*?)(?: \(at depth|$)", log, re.MULTILINE)
    cut_off = any(sign in log for sign in ("Search not completed", "max search depth too small", "reached -DMEMLIM"))
    return Outcome(
        errors=int(errors[1]) if errors else -1,
        states=int(states[1]) if states else 0,
        complete=errors is not None and not cut_off,
        violation=violation[1].strip() if violation else "",
        seconds=seconds,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CHECKS)}; default: all")
    names = parser.parse_args().names or list(CHECKS)
    if missing := why_missing():
        sys.exit(f"model-check: {missing}")
    if unknown := set(names) - set(CHECKS):
        sys.exit(f"model-check: there is no {', '.join(sorted(unknown))}")
    failures = 0
    for name in names:
        check = CHECKS[name]
        outcome = explore(check)
        failure = outcome.failure_of(check)
        failures += failure is not None
        expected = f"found: {outcome.violation:.60}" if check.is_mutation else "complete, no error"
        print(f"{name:24} {outcome.states:>10,} states {outcome.seconds:6.1f} s  {failure or expected}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
