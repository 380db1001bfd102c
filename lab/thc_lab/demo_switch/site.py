"""A switch in a network namespace and its workers in theirs, with one cable to each: a testbed on this host."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from ipaddress import IPv4Address

from byteps_thc._scheme.adding.server_codes import ServerCodes
from thc_lab.demo_switch.software_switch import SwitchChoice
from thc_lab.namespaces import connect
from thc_lab.testbed.description import Testbed, assign_workers
from thc_lab.testbed.plan_environment import servers_of
from thc_lab.testbed.plan_network import cables_of
from thc_lab.testbed.sections import HostDescription, JobSettings, Nic, SwitchAggregator, Training, Udp
from thc_switch.description import RecirculationPort, SwitchDescription

CPU_PORT = 64
RECIRCULATION_PORT = 68
SLOTS = 64


@dataclass(frozen=True)
class Site:
    """One switch with the network 10.77.<number>.0/24. Worker w is at its port 1 + w."""

    number: int
    #: namespace of the switch and its agent
    switch: str
    #: namespaces of the workers, which may have cables to other switches as well
    workers: tuple[str, ...]
    choice: SwitchChoice

    def testbed(self, job: int = 0, codes: ServerCodes | None = None, lanes: int = 1) -> Testbed:
        """Describe it, with one job of all workers, or one for each lane. Hosts are called as their namespaces are."""
        hosts = [
            HostDescription(
                name=home,
                workers=1,
                nics=(Nic(ip=self._ip(1 + worker), interface=self.worker_interface, switch_port=1 + worker),),
            )
            for worker, home in enumerate(self.workers)
        ]
        switch = SwitchDescription(
            architecture="v1model" if self.choice.program == "v1model" else "tofino1",
            ip=self._ip(254),
            mac=f"02:00:00:02:{self.number:02x}:00",
            cpu_port=CPU_PORT,
            recirculation=(RecirculationPort(port=RECIRCULATION_PORT),),
        )
        return Testbed(
            name="demo",
            reach="namespaces",
            hosts=(*hosts, HostDescription(name=self.switch)),
            aggregator=SwitchAggregator(
                kind="switch", host=self.switch, runner=self.choice.target, switch=switch, slots=SLOTS
            ),
            transport=Udp(kind="udp"),
            job=JobSettings(id=job, lanes=lanes, thc=codes or ServerCodes()),
            # A plan does not start the training.
            training=Training(launcher="bpslaunch", command=("thc", "demo-switch")),
        )

    @property
    def server(self) -> str:
        """IP:PORT that workers name as their server."""
        testbed = self.testbed()
        return servers_of(testbed, assign_workers(testbed)[0])

    def worker_local(self, worker: int) -> str:
        """IP:PORT the worker binds."""
        return assign_workers(self.testbed())[worker].address

    @property
    def worker_interface(self) -> str:
        """Name of a worker's interface, the same for all."""
        return f"eth{self.number}"

    def connect(self, dpdk_workers: Collection[int] = ()) -> None:
        """Lay the cables. The kernel gets no address where DPDK is to answer for it."""
        by_dpdk = [self.workers[worker] for worker in dpdk_workers]
        for cable in cables_of(self.testbed()):
            near = replace(cable.a, address="") if cable.a.host in by_dpdk else cable.a
            connect(replace(cable, a=near))

    def _ip(self, host: int) -> IPv4Address:
        return IPv4Address(f"10.77.{self.number}.{host}")
