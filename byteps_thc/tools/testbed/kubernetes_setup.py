"""Set-up of nodes, as scripts for whoever administers them: pods cannot undo what other pods rely on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from byteps_thc.tools.testbed.host_scripts import MAKE_FOLDER, comment
from byteps_thc.tools.testbed.process import HostSetup, Plan


def setup_scripts(plan: Plan) -> dict[str, str]:
    """Name -> script to be run as root on a node, and another one that undoes it."""
    scripts = {}
    for setup in plan.setups:
        scripts[f"set-up.{setup.host}.sh"] = "\n".join(_script(plan, setup)) + "\n"
        undo = [shlex.join(step.undo) for step in reversed(setup.steps) if step.undo]
        if undo:
            scripts[f"undo.{setup.host}.sh"] = "\n".join(["#!/bin/sh", *undo]) + "\n"
    return scripts


def _script(plan: Plan, setup: HostSetup) -> Iterator[str]:
    yield "#!/bin/sh"
    yield "set -e"
    yield f"make_folder={shlex.quote(MAKE_FOLDER)}"
    for file in plan.files:
        if file.host == setup.host and file.text is None:
            yield f'sh -c "$make_folder" sh {shlex.quote(file.path)}'
    for step in setup.steps:
        yield comment(step.what)
        done = f"{shlex.join(step.done)} || " if step.done else ""
        yield f"{done}{shlex.join(step.do)}"
