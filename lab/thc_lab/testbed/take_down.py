"""`thc testbed down`: ends all processes, undoes the set-up, removes files, cables and namespaces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from byteps_thc.errors import ThcError, TransportError
from thc_lab.testbed.bring_up import Say
from thc_lab.testbed.hosts import namespaces
from thc_lab.testbed.hosts.kept import KeptHost
from thc_lab.testbed.hosts.local import LocalHost
from thc_lab.testbed.hosts.reach import reached_or_not
from thc_lab.testbed.process import HostSetup, Plan
from thc_lab.testbed.run import STOP_GRACE_S
from thc_lab.testbed.setup import Undoable
from thc_lab.testbed.state import State

_LEFTOVERS = "byteps_thc.transport.byteps.leftover_memory"
_LEFTOVERS_TIMEOUT_S = 60.0


async def take_down(state: State, say: Say) -> None:
    """Undo what the journal says, in the opposite order. TransportError names what could not be, and why."""
    plan = state.plan()
    if plan is None:
        say(
            f"nothing to take down: this user has no testbed {state.folder.name} up (no plan in {state.folder}); "
            "what another user has started, that one takes down"
        )
        return
    async with reached_or_not(plan) as (hosts, unreached):
        errors = [str(error) for name, error in unreached.items() if name in state.journal.hosts]
        prepared = [_reachable(plan, kept) for name, kept in hosts.items() if name in state.journal.hosts]
        # One after the other on all hosts: they may share files, and workers need the others to end in order.
        errors += await _on_all(_stop_workers(plan, kept) for kept in prepared)
        errors += await _on_all(_stop_all(plan, kept) for kept in prepared)
        errors += await _on_all(_undo_setup(plan, kept, state, say) for kept in prepared)
        if not errors:
            for kept in prepared:
                errors += await _on_all([_remove(kept, state, say)])
    if errors:
        hint = "not everything was taken down; mend this, and run `thc testbed down` again:"
        raise TransportError("\n".join([hint, *dict.fromkeys(errors)]))
    for host in reversed(state.journal.namespaces):
        namespaces.remove(namespaces.namespace_of(plan.name, host))
    state.remove()
    say(f"testbed {plan.name} is down")


def _is_there(plan: Plan, host: str) -> bool:
    """A namespace may be gone: removed by hand, or with a restart of the machine."""
    return plan.reach != "namespaces" or namespaces.is_there(namespaces.namespace_of(plan.name, host))


def _reachable(plan: Plan, kept: KeptHost) -> KeptHost:
    """The host, or this machine in place of a namespace that is gone: processes may still be in it."""
    return kept if _is_there(plan, kept.name) else kept.at(LocalHost(kept.name, kept.host.python))


async def _on_all(work: Iterable[Awaitable[None]]) -> list[str]:
    """Errors of what is done on several hosts at the same time."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, ThcError):
            raise result
    return [str(result) for result in results if result is not None]


def _workers_on(plan: Plan, kept: KeptHost) -> list[str]:
    return [name for name in plan.workers if plan.process(name).host == kept.name]


async def _stop_workers(plan: Plan, kept: KeptHost) -> None:
    if workers := _workers_on(plan, kept):
        await kept.stop(workers, STOP_GRACE_S)


async def _stop_all(plan: Plan, kept: KeptHost) -> None:
    await kept.stop(None, STOP_GRACE_S)
    if _workers_on(plan, kept):  # gradients in shared memory of those that were killed
        await kept.host.run([kept.host.python, "-P", "-m", _LEFTOVERS], timeout_s=_LEFTOVERS_TIMEOUT_S)


async def _undo_setup(plan: Plan, kept: KeptHost, state: State, say: Say) -> None:
    for setup in plan.setups:
        if setup.host == kept.name and _is_there(plan, kept.name):
            await _undo(setup, kept, state, say)


async def _remove(kept: KeptHost, state: State, say: Say) -> None:
    for path in await kept.remove():
        say(f"{kept.name}: {path} stays: it is not what this testbed has made there")
    state.journal.hosts.remove(kept.name)
    state.write()


async def _undo(setup: HostSetup, kept: KeptHost, state: State, say: Say) -> None:
    numbers = state.journal.steps.get(setup.host, [])
    if not numbers:
        return
    undoable = await Undoable.on(kept)
    while numbers:
        step = setup.steps[numbers[-1]]
        if step.undo:
            say(f"{setup.host}: undo: {step.what}")
        await undoable.undo(step)
        numbers.pop()
        state.write()
