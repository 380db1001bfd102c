"""A relay that loses the packets of one worker."""

from thc_lab.udp_relay import UdpRelay

WORKER_ID_OFFSET = 5  # of a header


class WorkerRelay(UdpRelay):
    """Loses the packets of `lost_worker`."""

    lost_worker = -1

    def _relay(self, is_up: bool, datagram: bytes, *way: object) -> None:
        if datagram[WORKER_ID_OFFSET] != self.lost_worker:
            super()._relay(is_up, datagram, *way)  # type: ignore[arg-type]
