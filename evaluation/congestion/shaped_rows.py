"""Links of a ShapedNetwork as a row has them."""

from congestion.rows import CROWD_HOSTS, RANKS, Row
from thc_lab.shaped_network import ShapedNetwork


class ShapedRows(ShapedNetwork):
    """The workers' hosts, and last the server's."""

    def __init__(self, *, crowd: bool = False) -> None:
        super().__init__((CROWD_HOSTS if crowd else RANKS) + 1, "crowd" if crowd else "")

    def shape(self, row: Row) -> None:
        """See measuring.Network."""
        for host in self.hosts:
            host.shape(row.bits_per_s, row.queue_bytes)
        if row.slow_bits_per_s is not None:
            self.hosts[-2].shape(row.slow_bits_per_s, row.queue_bytes)

    def unshape(self) -> None:
        """See measuring.Network."""
        for host in self.hosts:
            host.unshape()

    def drops(self) -> int:
        """See measuring.Network."""
        return sum(host.sent().drops + host.received().drops for host in self.hosts)

    def sent_bytes(self, host: int) -> int:
        """See measuring.Network."""
        return self.hosts[host].sent().bytes
