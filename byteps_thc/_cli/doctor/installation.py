"""Checks of the package itself: kernels, cores, thc-ps."""

import os
from collections.abc import Sequence
from importlib.metadata import version

from byteps_thc._base.built import COMPILED_MODULES
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._cli.doctor.finding import Finding, State
from byteps_thc._cli.doctor.processes import run_command, why_not_loaded
from byteps_thc._cli.launch import find_thc_ps

_REINSTALL = "pip install --force-reinstall --no-deps .  # in a clone; else the wheel's file in place of the dot"
_THC_PS_DEADLINE_S = 10.0


def check_modules() -> Sequence[Finding]:
    """Whether the compiled modules load, with a finding for each failure."""
    reasons = {name: why_not_loaded(name) for name in COMPILED_MODULES}
    failing = [
        Finding(name, State.PROBLEM, f"byteps_thc.{name} does not load: {reason}", _REINSTALL, required=True)
        for name, reason in reasons.items()
        if reason
    ]
    return failing or [Finding("modules", State.OK, f"byteps_thc {version('byteps_thc')}: {', '.join(reasons)} load")]


def check_kernels() -> Sequence[Finding]:
    """Instruction sets that the kernels use here."""
    if why_not_loaded("_core"):
        return []
    from byteps_thc._native import _core  # here: it may not load, or end the process

    best, *others = _core.instruction_sets()
    if best in ("emu128", "scalar"):
        meaning = "no SIMD kernels for this processor: encoding and decoding are several times slower"
        return [Finding("kernels", State.PROBLEM, meaning)]
    return [Finding("kernels", State.OK, f"{best} (also: {', '.join(others) or 'none'})")]


def check_cores() -> Sequence[Finding]:
    """Cores that this process may use."""
    usable, total = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    if usable > 1:
        return [Finding("cores", State.OK, f"{usable} of {total} usable; encoding, decoding and packets overlap")]
    meaning = f"1 of {total} usable: encoding, decoding and packets take turns"
    return [Finding("cores", State.PROBLEM, meaning, "taskset -p $$" if total > 1 else "")]


def check_thc_ps() -> Sequence[Finding]:
    """The parameter server's binary."""
    try:
        binary = find_thc_ps()
    except ConfigurationError:
        return [Finding("thc-ps", State.MISSING, "the parameter server is not installed here", _REINSTALL)]
    outcome = run_command([str(binary), "--version"], _THC_PS_DEADLINE_S)
    if outcome.code != 0:
        meaning = f"{binary} does not run: {outcome.reason}"
        return [Finding("thc-ps", State.PROBLEM, meaning, _REINSTALL, required=True)]
    found, wanted = outcome.output.strip().removeprefix("thc-ps "), version("byteps_thc")
    if found != wanted:
        meaning = f"{binary} is version {found}, the Python package {wanted}"
        return [Finding("thc-ps", State.PROBLEM, meaning, _REINSTALL, required=True)]
    return [Finding("thc-ps", State.OK, f"version {found} at {binary}")]
