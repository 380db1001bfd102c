"""How many workers may average together. Packets have a bit for each, which is the wire's limit (wire/wire.toml)."""

from __future__ import annotations

from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc._scheme.wire.layout import MAX_WORKERS, MAX_WORKERS_SWITCH

#: Ranks that sum codes themselves, and workers of BytePS's own servers. Sums have 16 bits: that many workers leave
#: granularities up to 63, more than a table of up to 5 bits gains by.
MAX_RANKS = 1024


def require_packet_workers(workers: int) -> None:
    """ConfigurationError when thc-ps, or any switch, cannot sum for so many workers."""
    if workers > MAX_WORKERS:
        raise ConfigurationError(
            f"thc-ps sums for at most {MAX_WORKERS} workers, and a switch for {MAX_WORKERS_SWITCH}, not {workers}: "
            f"average without NetworkConfig among the ranks of a process group, up to {MAX_RANKS} of them, or within "
            "each host first, so that one rank a host is a worker"
        )
