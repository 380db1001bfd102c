"""Checks of what the switch needs: P4 tools, and network namespaces for its software twin."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from byteps_thc.errors import ConfigurationError
from byteps_thc.tools.doctor.finding import Finding, State
from byteps_thc.tools.doctor.processes import run_command
from thc_switch.targets import INSTALL_MODEL, require_model

_NAMESPACE_DEADLINE_S = 10.0


def check_p4_tools() -> Sequence[Finding]:
    """The P4 compiler and the software switch bmv2, or the P4 model in their place."""
    missing = [name for name in ("p4c-bm2-ss", "simple_switch") if shutil.which(name) is None]
    if not missing:
        return [Finding("P4 tools", State.OK, "p4c-bm2-ss and simple_switch: thc demo-switch can use bmv2")]
    bmv2 = f"no {', no '.join(missing)}"
    try:
        require_model()
    except ConfigurationError:
        meaning = f"{bmv2}, and no P4 model: thc demo-switch needs either; the command is for a clone of byteps_thc"
        return [Finding("P4 tools", State.OPTIONAL, meaning, INSTALL_MODEL)]
    return [Finding("P4 tools", State.OPTIONAL, f"{bmv2}: thc demo-switch uses the P4 model, which is installed")]


def check_namespaces() -> Sequence[Finding]:
    """Whether `thc demo-switch` can make its network."""
    name, use = "network namespaces", "thc demo-switch and tests with shaped links need them"
    if shutil.which("ip") is None:
        return [Finding(name, State.OPTIONAL, f"no `ip` command; {use}", "apt-get install iproute2")]
    outcome = run_command(["unshare", "--net", "true"], _NAMESPACE_DEADLINE_S)
    if outcome.code == 0:
        return [Finding(name, State.OK, "this user can make them: thc demo-switch works")]
    if os.geteuid() != 0:
        return [Finding(name, State.OPTIONAL, f"need root; {use}", "sudo thc demo-switch")]
    return [Finding(name, State.OPTIONAL, f"not allowed here ({outcome.reason}); {use}", "docker run --privileged ...")]
