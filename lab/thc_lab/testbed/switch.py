"""A testbed's switch: its job description, by the types and checks of thc_switch, and how one in software is run."""

import json
from collections.abc import Mapping

from byteps_thc._base.errors import ConfigurationError
from thc_lab.testbed.description import Testbed, Worker, config_of, mac_of
from thc_lab.testbed.sections import SwitchAggregator
from thc_switch.allocation import allocate
from thc_switch.description import Deployment, JobDescription, SwitchDescription, WorkerDescription

#: Ends of the cable between bmv2's CPU port and the agent, in namespaces.
CPU_INTERFACE, AGENT_INTERFACE = "cpu", "agent"


def deployment_of(testbed: Testbed, aggregator: SwitchAggregator, workers: tuple[Worker, ...]) -> Deployment:
    """Describe the switch with the job of the workers, one for each lane, and the further jobs.

    Raises ConfigurationError, with the keys of the testbed's description, for jobs that no switch can sum.
    """
    try:
        job = JobDescription(
            job_id=testbed.job.id,
            workers=tuple(_describe_worker(worker) for worker in workers),
            slots=aggregator.slots,
            quorum=testbed.job.quorum,
            lanes=testbed.lanes,
            thc=config_of(testbed),
        )
        deployment = Deployment(switch=_switch_of(testbed, aggregator), jobs=(job, *aggregator.further_jobs))
        allocate(deployment)
    except ConfigurationError as error:
        raise ConfigurationError(f"the switch cannot sum for this job: {error}") from error
    return deployment


def text_of(deployment: Deployment) -> str:
    """The job description as `thc switch` reads it from a .json file; lanes are jobs there."""
    return json.dumps(deployment.model_dump(mode="json", exclude_defaults=True), indent=1) + "\n"


def port_interface(port: int | None) -> str:
    """Return the kernel's name of a software switch's interface at a port, in namespaces."""
    return f"port{port}"


def words_of_run(
    testbed: Testbed, aggregator: SwitchAggregator, job_description: str, uplinks: Mapping[int, str] | None = None
) -> list[str]:
    """The words behind `thc` that run the P4 program in software. uplinks: interfaces of ports without workers."""
    ports = sorted({nic.switch_port for host in testbed.hosts for nic in host.nics if nic.switch_port is not None})
    interfaces = {port: aggregator.interfaces.get(port, port_interface(port)) for port in ports} | dict(uplinks or {})
    words = ["switch", "run", job_description, "--target", aggregator.runner]
    for port, interface in interfaces.items():
        words += ["--port", f"{port}={interface}"]
    if aggregator.runner == "bmv2":
        words += ["--cpu-interface", CPU_INTERFACE]
    return words


def _describe_worker(worker: Worker) -> WorkerDescription:
    where = f"hosts: nics of {worker.host.name}"
    if worker.nic.switch_port is None:
        raise ConfigurationError(f"{where}: give switch_port, the switch's port at the other end of the cable")
    return WorkerDescription(
        ip=worker.nic.ip, mac=mac_of(worker.nic), udp_port=worker.udp_port, port=worker.nic.switch_port
    )


def _switch_of(testbed: Testbed, aggregator: SwitchAggregator) -> SwitchDescription:
    switch = aggregator.switch
    if testbed.reach == "namespaces" and switch.cpu_interface is None:
        return SwitchDescription(**switch.model_dump(exclude_unset=True) | {"cpu_interface": AGENT_INTERFACE})
    return switch
