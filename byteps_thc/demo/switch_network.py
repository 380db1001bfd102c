"""How the demo's workers reach the switches: each scheme has its own, and thc-ps beside it judges every sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from byteps_thc.demo.checked_session import CheckedSession
from byteps_thc.demo.namespaces import inside
from byteps_thc.demo.settings import DemoSettings, Scheme
from byteps_thc.demo.site import Site
from byteps_thc.session import Session, Timeouts, UdpConfig

#: Packets of codes in flight from one worker: a software switch takes milliseconds for each.
WINDOW_PACKETS = 8
PACKET_BYTES = 544
#: A software switch is slow rather than lossy: repeat late.
TIMEOUTS = Timeouts(connect_s=60, operation_s=120, rto_initial_s=2, rto_min_s=0.5, rto_max_s=4)


@dataclass(frozen=True)
class SwitchNetwork:
    """The switches, and where thc-ps is."""

    #: A switch holds one lookup table, so Uniform THC and THC need one each.
    sites: dict[Scheme, Site]
    #: address of thc-ps, outside of the workers' namespaces
    reference: str

    def open_session(self, worker: int, scheme: Scheme, settings: DemoSettings) -> Session:
        """See Network. The process itself stays where it is: gloo and thc-ps are on its loopback."""
        shared: dict[str, Any] = {
            "job": scheme.job,
            "worker": worker,
            "workers": settings.workers,
            "config": settings.thc_config(scheme),
            "timeouts": TIMEOUTS,
        }
        site = self.sites[scheme]
        reference = Session([self.reference], **shared, backend=UdpConfig("127.0.0.1"))
        with inside(site.workers[worker]):
            return CheckedSession(
                reference,
                [site.server],
                **shared,
                window_bytes=WINDOW_PACKETS * PACKET_BYTES,
                # Veth would hand a burst over in one piece, which only a kernel cuts into datagrams.
                backend=UdpConfig(site.worker_local(worker), gso=False, gro=False),
            )
