"""Sessions whose datagrams get lost, are copied and come late."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from byteps_thc._native import _comm
from byteps_thc._net.network_settings import io_config
from byteps_thc._net.session import Session


@contextmanager
def packet_faults(*, drop: float = 0.0, duplicate: float = 0.0, reorder: float = 0.0, seed: int = 1) -> Iterator[None]:
    """Let sessions that open here have faults: probabilities each way. seed: of worker 0's first, others differ."""
    opened = Counter[int]()

    def faulty(session: Session) -> _comm.IoConfig:
        own = seed + session.worker + session.workers * opened[session.worker]
        opened[session.worker] += 1
        io = io_config(session)
        if drop or duplicate or reorder:
            io.add_faults(drop=drop, duplicate=duplicate, reorder=reorder, seed=own)
        return io

    with patch("byteps_thc._net.session.io_config", faulty):
        yield
