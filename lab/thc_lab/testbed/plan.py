"""Makes the plan of a run from a testbed."""

import sys
from collections.abc import Iterator
from pathlib import Path

from byteps_thc._base.errors import ConfigurationError
from thc_lab.testbed.description import Testbed, Worker, aggregator_nic, assign_workers, config_of, racks_of
from thc_lab.testbed.plan_environment import address_of_thc_ps, config_text, results_file, servers_of
from thc_lab.testbed.plan_network import cables_of, namespaces_of
from thc_lab.testbed.plan_processes import Processes
from thc_lab.testbed.process import Plan, PlannedHost
from thc_lab.testbed.sections import Racks, SwitchAggregator


def plan(testbed: Testbed) -> Plan:
    """Compute everything a run needs. ConfigurationError: the parts do not fit together."""
    workers = assign_workers(testbed)
    local = testbed.reach == "namespaces"
    bin = testbed.bin or (str(Path(sys.executable).parent) if local else None)
    processes = Processes(testbed, workers, bin)
    python = sys.executable if local and testbed.bin is None else processes.command("python3")
    namespaces = namespaces_of(testbed, python) if local else ()
    return Plan(
        name=testbed.name,
        reach=testbed.reach,
        hosts=(*_hosts(testbed, python), *namespaces),
        cables=cables_of(testbed) if local else (),
        bridges=tuple(host.name for host in namespaces),
        files=tuple(processes.files()),
        processes=processes.all(),
        resolved=_resolved(testbed, workers),
        addresses=tuple(_addresses(testbed, workers)),
        results=results_file(workers) if testbed.training.results else None,
    )


def _hosts(testbed: Testbed, python: str) -> Iterator[PlannedHost]:
    for host in testbed.hosts:
        management_ip = None if host.management_ip is None else str(host.management_ip)
        yield PlannedHost(host.name, management_ip=management_ip, python=python)


def _resolved(testbed: Testbed, workers: tuple[Worker, ...]) -> dict[str, str]:
    config = config_of(testbed)
    resolved = config.resolve(len(workers))
    if resolved.value_bits == 16 and isinstance(testbed.aggregator, SwitchAggregator):
        raise ConfigurationError(
            f"job.thc: {len(workers)} workers would take sums of 16 bits, and a switch has 8: set value_bits = 8, "
            "without a granularity of 15 or more"
        )
    jobs = range(testbed.job.id, testbed.job.id + testbed.lanes)
    return {
        "workers": str(len(workers)),
        "jobs": " ".join(map(str, jobs)),
        **_servers(testbed, workers),
        "THC_CONFIG": config_text(config) or "(defaults)",
        "bits": str(config.bits),
        "granularity": str(resolved.table.granularity),
        "p": f"{resolved.table.p:.6g}",
        "bits of a sum": str(resolved.value_bits),
        "codes per packet": str(config.codes_per_packet),
        "settings hash": f"{resolved.shared_hash:08x}",
    }


def _servers(testbed: Testbed, workers: tuple[Worker, ...]) -> dict[str, str]:
    """The receivers of the workers' codes, and with racks the adders of the sums."""
    aggregator = testbed.aggregator
    if not isinstance(aggregator, Racks):
        return {"servers": servers_of(testbed, workers[0])}
    leaves = {
        f"rack {rack.number}": f"workers {rack.range} at {address_of_thc_ps(testbed, rack.leaf)}"
        for rack in racks_of(testbed, aggregator)
    }
    return leaves | {"root": address_of_thc_ps(testbed, testbed.host(aggregator.root))}


def _addresses(testbed: Testbed, workers: tuple[Worker, ...]) -> Iterator[tuple[str, str, str]]:
    for host in testbed.hosts:
        if host.management_ip is not None:
            yield host.name, "management", str(host.management_ip)
    for worker in workers:
        yield f"worker{worker.number} on {worker.host.name}", "data", worker.address
    for host in testbed.aggregator_hosts:
        yield f"thc-ps on {host.name}", "data", str(aggregator_nic(testbed, host).ip)
    if isinstance(testbed.aggregator, SwitchAggregator):
        yield "switch", "data", servers_of(testbed, workers[0])
