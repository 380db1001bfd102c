"""The switch's job description that follows from a testbed, by the types and checks of thc_switch."""

from __future__ import annotations

from byteps_thc.errors import ConfigurationError
from byteps_thc.tools.testbed.description import Testbed, Worker, mac_of
from byteps_thc.tools.testbed.sections import SwitchAggregator
from thc_switch.allocation import allocate
from thc_switch.description import Deployment, JobDescription, SwitchDescription, WorkerDescription

#: Ends of the cable between bmv2's CPU port and the agent, in namespaces.
CPU_INTERFACE, AGENT_INTERFACE = "cpu", "agent"


def deployment_of(testbed: Testbed, aggregator: SwitchAggregator, workers: tuple[Worker, ...]) -> Deployment:
    """Describe the switch with the job of the workers, one for each lane, and the further jobs.

    ConfigurationError, with the keys of the testbed's description, for what no switch can sum.
    """
    try:
        job = JobDescription(
            job_id=testbed.job.id,
            workers=tuple(_describe_worker(worker) for worker in workers),
            slots=aggregator.slots,
            quorum=testbed.job.quorum,
            lanes=testbed.lanes,
            thc=testbed.job.thc,
        )
        deployment = Deployment(switch=_switch_of(testbed, aggregator), jobs=(job, *aggregator.further_jobs))
        allocate(deployment)
    except ConfigurationError as error:
        raise ConfigurationError(f"the switch cannot sum for this job: {error}") from error
    return deployment


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
