"""How the demo's workers reach the switches: each scheme has its own, and thc-ps beside it judges every sum."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from byteps_thc._cli.launch import ENDS_WITH_PARENT, ParameterServer
from byteps_thc._net.session import Session, Timeouts, UdpConfig
from thc_lab.demo.checked_session import CheckedSession
from thc_lab.demo.network import RUN, Network
from thc_lab.demo.settings import DemoSettings, Scheme
from thc_lab.demo_switch.site import Site
from thc_lab.demo_switch.software_switch import SoftwareSwitch, SwitchChoice
from thc_lab.namespaces import Namespaces, inside

#: A software switch takes milliseconds for a packet.
TIMEOUTS = Timeouts(connect_s=60, operation_s=120)


@dataclass(frozen=True)
class SwitchNetwork(Network):
    """The switches, and where thc-ps is."""

    #: A switch holds one lookup table, so Uniform THC and THC need one each.
    sites: dict[Scheme, Site]
    #: address of thc-ps, outside of the workers' namespaces
    reference: str

    @override
    def open_session(self, worker: int, scheme: Scheme, settings: DemoSettings) -> Session:
        """Join the job of a scheme. The process itself stays where it is: gloo and thc-ps are on its loopback."""
        shared: dict[str, Any] = {
            "job": scheme.job,
            "run": RUN,
            "worker": worker,
            "workers": settings.workers,
            "codes": settings.codes(scheme),
            "timeouts": TIMEOUTS,
        }
        site = self.sites[scheme]
        reference = Session([self.reference], **shared, backend=UdpConfig("127.0.0.1"))
        with inside(site.workers[worker]):
            return CheckedSession(reference, [site.server], **shared, backend=UdpConfig(site.worker_local(worker)))


def start_switches(
    choice: SwitchChoice, settings: DemoSettings, folder: Path, stack: contextlib.ExitStack
) -> SwitchNetwork:
    """Make the namespaces, start a switch for each scheme and thc-ps; `stack` ends them all. See StartNetwork."""
    namespaces = stack.enter_context(Namespaces())
    workers = tuple(namespaces.add(f"worker{worker}") for worker in range(settings.workers))
    sites, switches = {}, []
    for scheme in (Scheme.UNIFORM_THC, Scheme.THC):
        site = Site(scheme.job, namespaces.add(f"switch{scheme.job}"), workers, choice)
        site.connect()
        testbed = site.testbed(scheme.job, settings.codes(scheme))
        switches.append(stack.enter_context(SoftwareSwitch(testbed, folder)))
        sites[scheme] = site
    for switch in switches:
        switch.wait_until_ready()
    reference = stack.enter_context(ParameterServer(["--log-level", "warning"], prefix=ENDS_WITH_PARENT))
    return SwitchNetwork(sites, reference.address)
