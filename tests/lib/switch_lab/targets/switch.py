"""Common parts of switches: one deployment, planned by thc_switch, and the agent behind the CPU port."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from switch_lab.jobs import SERVICE_IP, SERVICE_MAC, Job
from switch_lab.targets.target import SWITCH_LIMITS, PortFrame
from thc_switch.agent import SwitchAgent
from thc_switch.allocation import allocate
from thc_switch.controls import CONTROLS, AggregationBlocks, plan
from thc_switch.description import (
    Deployment,
    JobDescription,
    RecirculationPort,
    Route,
    Station,
    SwitchDescription,
    WorkerDescription,
)
from thc_switch.status import SwitchStatus, read_status
from thc_switch.targets.base import SwitchControl

#: Hosts that are no workers: one each at the first and the last front port, and a network behind the last.
STATION_MACS = ("02:00:00:00:aa:01", "02:00:00:00:aa:02")
ROUTED_NETWORK = "192.0.2.0/24"


class SwitchTarget(ABC):
    """A switch with a P4 program, and its control plane."""

    limits = SWITCH_LIMITS

    def __init__(
        self,
        name: str,
        architecture: str,
        front_ports: tuple[int, ...],
        cpu_port: int,
        recirculation_ports: tuple[int, ...],
    ) -> None:
        self.name, self.front_ports, self.cpu_port = name, front_ports, cpu_port
        #: whether ingress is told how long a packet is
        self.knows_length = architecture == "v1model"
        self._architecture, self._recirculation_ports = architecture, recirculation_ports
        self._installed: Deployment | None = None
        self._installed_table: tuple[int, ...] | None = None
        self._agent: SwitchAgent | None = None
        self._now_s = 0.0

    def late(self) -> list[PortFrame]:
        """Return nothing: no switch paces."""
        return []

    @property
    @abstractmethod
    def control(self) -> SwitchControl:
        """How tables, counters and registers are reached."""

    @abstractmethod
    def run_frame(self, port: int, frame: bytes) -> list[PortFrame]:
        """Send a frame into any port; return all frames that leave in response, the CPU's too."""

    def close(self) -> None:  # noqa: B027  may be overridden
        """Nothing is left behind by a switch in this process."""

    def install(self, jobs: Sequence[Job]) -> None:
        deployment = self.describe(jobs)
        if deployment != self._installed:
            table = deployment.jobs[0].table.values if jobs else None
            # The lookup tables are 64 * 256 entries: they are only written anew when they change.
            unchanged = (AggregationBlocks,) if table == self._installed_table else ()
            parts = [control for control in CONTROLS if control not in unchanged]
            self.control.apply(plan(deployment, parts).operations())
            self._installed, self._installed_table = deployment, table
        self._agent = SwitchAgent(deployment, self.control)

    def reopen(self, job: Job, epoch: int) -> None:
        """Start a job over as the agent does, without a worker that asks for it."""
        assert self._installed is not None
        allocation = next(found for found in allocate(self._installed) if found.job_id == job.job_id)
        self.control.open_job(allocation, epoch, job.slots, (job.epoch,))

    def exchange(self, port: int, frame: bytes) -> list[PortFrame]:
        sent = self.run_frame(port, frame)
        for answer in self.answers_of_agent(sent):
            sent += self.run_frame(self.cpu_port, answer)
        return [(leaving, out) for leaving, out in sent if leaving != self.cpu_port]

    def answers_of_agent(self, sent: list[PortFrame]) -> list[bytes]:
        """Return the agent's answers to frames that left by its port."""
        assert self._agent is not None, "nothing was installed"
        to_cpu = [frame for port, frame in sent if port == self.cpu_port]
        return [answer for frame in to_cpu for answer in self._agent.handle(frame, self._now_s)]

    def status(self) -> SwitchStatus:
        """Return the switch's counts since its start."""
        assert self._installed is not None, "nothing was installed"
        return read_status(self.control, allocate(self._installed))

    def pass_time(self, seconds: float) -> None:
        self._now_s += seconds

    def describe(self, jobs: Sequence[Job]) -> Deployment:
        """The deployment as an administrator would write it."""
        first, last = self.front_ports[0], self.front_ports[-1]
        switch = SwitchDescription(
            architecture=self._architecture,
            ip=SERVICE_IP,
            mac=SERVICE_MAC,
            cpu_port=self.cpu_port,
            recirculation=tuple(RecirculationPort(port=port) for port in self._recirculation_ports),
            stations=(Station(mac=STATION_MACS[0], port=first), Station(mac=STATION_MACS[1], port=last)),
            routes=(Route(prefix=ROUTED_NETWORK, next_hop_mac=STATION_MACS[1], port=last),),
        )
        return Deployment(switch=switch, jobs=tuple(_job_description(job) for job in jobs))


def _job_description(job: Job) -> JobDescription:
    workers = tuple(
        WorkerDescription(ip=worker.ip, mac=worker.mac, udp_port=worker.udp_port, port=worker.switch_port)
        for worker in job.workers
    )
    fields = {"job_id": job.job_id, "slots": job.slots, "thc": job.thc}
    if job.upstream is None:
        return JobDescription(workers=workers, quorum=job.quorum, **fields)
    rack = job.upstream.workers
    return JobDescription(workers=workers[rack.start : rack.stop], upstream=job.upstream, **fields)
