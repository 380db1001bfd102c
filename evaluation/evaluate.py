"""Measure the claims of evaluation/claims.md that were not measured yet, and write the page (make evaluate).

    make evaluate                          # five hours; claims with a result in evaluation/results are skipped
    make evaluate ARGS="scale ablation"    # those claims, again
    make evaluate-quick                    # ten minutes: all claims on less data; into build/evaluation, not the page
    make evaluate ARGS=--page              # only the page, from existing results

Each claim is measured in a process of its own, which is ended when it takes four times as long as it says.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from bench import ROOT, SEARCHED, environment, machine
from pages import page
from pages.claim import NAMES, Claim, claim_of
from pages.record import Record, measured

RESULTS = ROOT / "evaluation/results"
QUICK_RESULTS = ROOT / "build/evaluation"
QUICK_MINUTES = 2


def result_path(name: str, quick: bool) -> Path:
    return (QUICK_RESULTS if quick else RESULTS) / f"{name}.json"


def measure(claim: Claim, quick: bool) -> str:
    """Measure in a separate process; return the error, empty if none."""
    if claim.root and os.geteuid() != 0:
        return "needs root, for network namespaces"
    command = [sys.executable, __file__, "--inside", claim.name, *(["--quick"] if quick else [])]
    limit_s = 4 * 60 * (QUICK_MINUTES if quick else claim.minutes)
    try:
        code = subprocess.run(command, cwd=ROOT, env=environment(), check=False, timeout=limit_s).returncode
    except subprocess.TimeoutExpired:
        return f"did not end within {limit_s} s"
    return f"ended with exit code {code}" if code else ""


def show(record: Record) -> None:
    """Print expectations and results."""
    for check in record.result.checks:
        verdict = "met" if check.met else "NOT MET"
        print(f"{record.claim}: {check.what}: expected {check.expected}, got {check.got}: {verdict}", flush=True)


def inside(name: str, quick: bool) -> None:
    """Measure in the process that measure() starts."""
    import torch

    torch.set_num_threads(1)
    record = measured(claim_of(name), quick, machine())
    record.write(result_path(name, quick))
    show(record)


def write_page() -> None:
    """Write the page of all claims that have a result."""
    claims = [claim_of(name) for name in NAMES if result_path(name, quick=False).exists()]
    page.write(ROOT, [(claim, Record.read(result_path(claim.name, quick=False))) for claim in claims])
    print(f"wrote {page.PAGE}, and tables of {page.README} and {page.RESULTS}")


def main() -> None:
    sys.path += SEARCHED
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "claims", nargs="*", metavar="CLAIM", help=f"those that have no result, or of {', '.join(NAMES)}"
    )
    parser.add_argument("--quick", action="store_true", help="on less data, into build/evaluation")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page")
    parser.add_argument("--inside", choices=NAMES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.claims) - set(NAMES):
        parser.error(f"unknown claims: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if args.inside:
        inside(args.inside, args.quick)
        return
    missing = [name for name in NAMES if args.quick or not result_path(name, quick=False).exists()]
    failed = {}
    for name in [] if args.page else args.claims or missing:
        if why := measure(claim_of(name), args.quick):
            failed[name] = why
        elif not args.quick:
            write_page()  # after each: an interrupted run keeps its results
    if args.page:
        write_page()
    for name, why in failed.items():
        print(f"{name}: {why}", file=sys.stderr)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
