"""What the commands of `thc testbed` do with a plan; run_cli.py reads their options and prints."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from byteps_thc.errors import ThcError
from thc_lab.testbed.bring_up import Say, make_hosts, prepare_hosts, start_processes
from thc_lab.testbed.hosts.kept import KeptHost
from thc_lab.testbed.hosts.reach import reached, reached_or_not
from thc_lab.testbed.hosts.together import together
from thc_lab.testbed.process import Plan
from thc_lab.testbed.run import Show, clear_last_run, refuse_beside_workers, train
from thc_lab.testbed.state import State
from thc_lab.testbed.take_down import take_down


async def up(plan: Plan, say: Say) -> None:
    """Make and set up hosts, and start everything but the workers. What is there already stays as it is.

    InUseError, with nothing changed, when the testbed is another command's.
    """
    state = State(plan.name)
    with state.locked():
        state.begin(plan)
        await make_hosts(plan, state)
        async with reached(plan) as hosts:
            if plan != state.plan():  # that of a run which is under way stays: status, logs and down go by it
                await refuse_beside_workers(plan, hosts)
                state.keep(plan)
            await _bring_up(plan, state, hosts, say)


async def run(
    plan: Plan, say: Say, show: Show, time_limit_s: float, private: Mapping[str, str] | None = None
) -> str | None:
    """The same, then train. Returns the text of the training's results, if the plan has any.

    private: values of the variables of which processes of the plan have the names only.

    Raises TransportError, which names the process that failed first, with all workers ended; InUseError, with nothing
    changed, when the testbed is another command's.
    """
    state = State(plan.name)
    async with contextlib.AsyncExitStack() as stack:
        with state.locked():
            state.begin(plan)
            await make_hosts(plan, state)
            hosts = await stack.enter_async_context(reached(plan))
            await clear_last_run(plan, hosts)
            state.keep(plan)  # not before: a run that is refused must not change what is known of the other
            await _bring_up(plan, state, hosts, say)
        await train(plan, hosts, say, show, time_limit_s, private or {})
        if plan.results is None:
            return None
        return await hosts[plan.results.host].read(plan.results.path)


async def down(name: str, say: Say) -> None:
    """End everything of the testbed of that name and undo its set-up. It may be repeated, and works after a crash."""
    state = State(name)
    with state.locked():
        await take_down(state, say)


async def processes(plan: Plan) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """What each host says of its processes (KeptHost.processes), and why hosts were not reached."""
    found = {}
    async with reached_or_not(plan) as (hosts, errors):
        unreached = {name: str(error) for name, error in errors.items()}
        for name, kept in hosts.items():
            try:
                found[name] = await kept.processes()
            except ThcError as error:
                unreached[name] = str(error)
    return found, unreached


async def logs(plan: Plan, names: list[str], show: Show, *, follow: bool, last_lines: int | None) -> None:
    """Show the output of these processes; follow: until they have ended."""

    async def of_host(kept: KeptHost) -> None:
        wanted = [name for name in names if plan.process(name).host == kept.name]
        if wanted:
            async for event in kept.watch(wanted, follow=follow, last_lines=last_lines):
                if "line" in event:
                    show(event["name"], event["line"])

    async with reached(plan) as hosts:
        await together(of_host(kept) for kept in hosts.values())


async def _bring_up(plan: Plan, state: State, hosts: dict[str, KeptHost], say: Say) -> None:
    await prepare_hosts(plan, hosts, state, say)
    await start_processes([process for process in plan.processes if process.role != "worker"], hosts, say)
