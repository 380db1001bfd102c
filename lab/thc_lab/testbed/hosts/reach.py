"""The hosts of a plan, reached."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from byteps_thc.errors import ThcError
from thc_lab.testbed.hosts.host import Host
from thc_lab.testbed.hosts.kept import KeptHost
from thc_lab.testbed.hosts.local import LocalHost
from thc_lab.testbed.hosts.namespaces import namespace_of
from thc_lab.testbed.hosts.ssh import SshHost
from thc_lab.testbed.hosts.together import together
from thc_lab.testbed.process import Plan, PlannedHost


@contextlib.asynccontextmanager
async def reached(plan: Plan) -> AsyncIterator[dict[str, KeptHost]]:
    """All hosts by name; the error of the first one that is not reached, when all have been tried."""
    async with reached_or_not(plan) as (hosts, errors):
        if errors:
            raise next(iter(errors.values()))
        yield hosts


@contextlib.asynccontextmanager
async def reached_or_not(plan: Plan) -> AsyncIterator[tuple[dict[str, KeptHost], dict[str, ThcError]]]:
    """Those hosts that are reached, and why the others are not."""
    found = await together(_reach(plan, host) for host in plan.hosts)
    hosts = {kept.name: kept for kept in found if isinstance(kept, KeptHost)}
    errors = {host.name: error for host, error in zip(plan.hosts, found, strict=True) if isinstance(error, ThcError)}
    try:
        yield hosts, errors
    finally:
        await together(kept.host.close() for kept in hosts.values())


async def _reach(plan: Plan, planned: PlannedHost) -> KeptHost | ThcError:
    # Hosts of one testbed may be one machine.
    folder = f"{plan.name}/{planned.name}"
    if planned.ssh is None:
        namespace = namespace_of(plan.name, planned.name)
        return KeptHost(LocalHost(planned.name, planned.python, namespace), folder, namespace)
    try:
        host: Host = await SshHost.connect(planned.name, planned.python, planned.ssh)
    except ThcError as error:
        return error
    return KeptHost(host, folder)
