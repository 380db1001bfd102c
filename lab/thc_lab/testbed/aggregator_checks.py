"""How the aggregator of a description fits to its hosts and its job. ValueError with the key to change."""

from byteps_thc._base.errors import ConfigurationError
from thc_lab.testbed.description import Testbed, assign_workers, config_of
from thc_lab.testbed.sections import Racks, SwitchAggregator, ThcPs
from thc_lab.testbed.switch import deployment_of
from thc_switch.description_types import refuse_repeated


def check_aggregator(testbed: Testbed) -> None:
    """ValueError with the first mistake."""
    aggregator = testbed.aggregator
    if isinstance(aggregator, SwitchAggregator):
        _check_switch(testbed, aggregator)
        return
    if isinstance(aggregator, Racks):
        _check_racks(testbed, aggregator)
    else:
        refuse_repeated("aggregator.hosts", aggregator.hosts)
    _check_thc_ps(testbed, aggregator)


def _check_thc_ps(testbed: Testbed, aggregator: ThcPs | Racks) -> None:
    for host in testbed.aggregator_hosts:
        if not host.nics:
            raise ValueError(f"aggregator: {host.name} has no NIC for its thc-ps; give it [[hosts.nics]]")
        if aggregator.kind == "thc-ps" and host.workers:
            raise ValueError(f'aggregator.hosts: {host.name} has workers; use kind "colocated", or another host')
        if aggregator.metrics_port and host.management_ip is None:
            raise ValueError(f"aggregator.metrics_port: {host.name} has no management_ip to serve it at; give it one")
    try:
        config_of(testbed).resolve(testbed.workers)
    except ConfigurationError as error:
        raise ValueError(f"job.thc: {error}") from error


def _check_racks(testbed: Testbed, aggregator: Racks) -> None:
    refuse_repeated("aggregator.racks: hosts:", (name for rack in aggregator.racks for name in rack.hosts))
    leaves = [rack.leaf for rack in aggregator.racks]
    refuse_repeated("aggregator.racks: leaf", [*leaves, aggregator.root])
    for name in [*leaves, aggregator.root]:
        if testbed.host(name).workers:
            raise ValueError(f"aggregator.racks: {name} has workers; root and leaves are on hosts of their own")
    placed = {name for rack in aggregator.racks for name in rack.hosts}
    for name in placed:
        if not testbed.host(name).workers:
            raise ValueError(f"aggregator.racks: {name} has no workers; give it some, or take it out of hosts")
    for host in testbed.hosts:
        if host.workers and host.name not in placed:
            raise ValueError(f"aggregator.racks: {host.name} has workers; put it into the hosts of a rack")
    if testbed.training.launcher == "torchrun" and testbed.coordinator.name not in aggregator.racks[0].hosts:
        raise ValueError("training.coordinator: it has rank 0, so with racks it is in the first one")
    if testbed.job.quorum is not None:
        raise ValueError("job.quorum: leaves and root wait for all workers; omit it")
    if testbed.job.loss_tolerant:
        raise ValueError("job.loss_tolerant: leaves and root wait for all workers; omit it")


def _check_switch(testbed: Testbed, aggregator: SwitchAggregator) -> None:
    architecture = aggregator.switch.architecture
    if aggregator.runner == "bmv2" and architecture != "v1model":
        raise ValueError('aggregator.switch.architecture: bmv2 runs "v1model"')
    if aggregator.runner == "tofino" and (architecture == "v1model" or testbed.reach == "namespaces"):
        raise ValueError('aggregator.runner: a Tofino is "tofino1" or "tofino2", and reach is "hosts"')
    if testbed.job.key_file is not None:
        raise ValueError("job.key_file: a switch cannot authenticate packets (docs/servers.md#keys); omit it")
    if aggregator.runner != "tofino" and testbed.reach == "hosts":
        missing = {nic.switch_port for host in testbed.worker_hosts for nic in host.nics} - aggregator.interfaces.keys()
        if missing:
            raise ValueError(f"aggregator.interfaces: name {aggregator.host}'s interface of each switch_port")
    if testbed.reach == "hosts":
        for host in testbed.worker_hosts:
            for nic in host.nics:
                if nic.mac is None:
                    raise ValueError(f"hosts: nics of {host.name}: give mac, which the switch has to know")
    deployment_of(testbed, aggregator, assign_workers(testbed))
