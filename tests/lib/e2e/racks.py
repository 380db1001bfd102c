"""Two racks: a P4 program as the leaf of each, and a thc-ps as their root, all in network namespaces."""

from collections.abc import Sequence
from contextlib import ExitStack
from ipaddress import IPv4Address
from pathlib import Path

from byteps_thc._base.wire.layout import UDP_PORT
from byteps_thc._cli.launch import ParameterServer
from e2e.workers import JOB, Work, Workers, backend_at
from thc_lab.demo_switch.site import SLOTS, Site
from thc_lab.demo_switch.software_switch import SoftwareSwitch, SwitchChoice
from thc_lab.namespaces import Cable, CableEnd, Namespaces, command_inside, connect
from thc_lab.testbed.description import Testbed, assign_workers
from thc_lab.testbed.sections import SwitchAggregator
from thc_lab.testbed.switch import deployment_of
from thc_switch.description import Deployment, JobDescription
from thc_switch.upstream_description import UpstreamDescription

#: A switch's port towards the root, and its interface.
UPLINK_PORT, UPLINK = 40, "uplink"


class TwoRacks:
    """Racks of two workers each, behind the programs of `choices`. The stack ends everything."""

    RACKS = "0-1,2-3"

    def __init__(self, namespaces: Namespaces, choices: Sequence[SwitchChoice], folder: Path, stack: ExitStack) -> None:
        self._root = namespaces.add("root")
        self.sites = [self._connect(namespaces, rack, choice) for rack, choice in enumerate(choices)]
        self._folder, self._stack = folder, stack

    def start_root(self, *arguments: str) -> ParameterServer:
        """Start thc-ps, with more arguments than the leaves need."""
        prefix = command_inside(self._root)
        options = ["--slots", str(SLOTS), *arguments]
        return self._stack.enter_context(ParameterServer(options, prefix=prefix, ip="0.0.0.0", port=UDP_PORT))

    def start_leaves(self) -> None:
        """Start the switches; returns when packets may come."""
        switches = []
        for rack, site in enumerate(self.sites):
            testbed = site.testbed(JOB)
            deployment = self._deployment(rack, testbed)
            switch = SoftwareSwitch(testbed, self._folder, deployment=deployment, uplinks={UPLINK_PORT: UPLINK})
            switches.append(self._stack.enter_context(switch))
        for switch in switches:
            switch.wait_until_ready()

    def start_workers(self, work: Work, numbers: Sequence[int] = range(4)) -> Workers:
        """Start workers by their numbers, each at its rack's switch."""
        places = [(site, local) for site in self.sites for local in range(len(site.workers))]
        settings = [
            work.settings(number, site.server, backend_at(site, local, work.backends[number]))
            for number, (site, local) in enumerate(places)
        ]
        namespaces = [site.workers[local] for site, local in places]
        return Workers([settings[number] for number in numbers], [namespaces[number] for number in numbers])

    def _connect(self, namespaces: Namespaces, rack: int, choice: SwitchChoice) -> Site:
        workers = tuple(namespaces.add(f"rack{rack}worker{local}") for local in range(2))
        site = Site(1 + rack, namespaces.add(f"leaf{rack}"), workers, choice)
        site.connect()
        below = CableEnd(self._root, f"rack{rack}", self._root_mac(rack), f"{self._root_ip(site)}/24")
        connect(Cable(below, CableEnd(site.switch, UPLINK, f"02:00:00:07:00:{rack:02x}")))
        return site

    def _deployment(self, rack: int, testbed: Testbed) -> Deployment:
        assert isinstance(testbed.aggregator, SwitchAggregator)
        own = deployment_of(testbed, testbed.aggregator, assign_workers(testbed))
        upstream = UpstreamDescription(
            ip=IPv4Address(self._root_ip(self.sites[rack])),
            mac=self._root_mac(rack),
            port=UPLINK_PORT,
            racks=self.RACKS,
            rack=rack,
        )
        (alone,) = own.jobs
        job = JobDescription(job_id=JOB, workers=alone.workers, slots=alone.slots, upstream=upstream)
        return Deployment(switch=own.switch, jobs=(job,))

    @staticmethod
    def _root_mac(rack: int) -> str:
        return f"02:00:00:06:00:{rack:02x}"

    @staticmethod
    def _root_ip(site: Site) -> str:
        return f"10.77.{site.number}.200"
