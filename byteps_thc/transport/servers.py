"""THC with parameter servers or a switch: codes go there, sums come back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from typing_extensions import override

from byteps_thc import _comm, _core
from byteps_thc.arrays import F32, U8, U16
from byteps_thc.config import ThcConfig
from byteps_thc.errors import ConfigurationError
from byteps_thc.transport.recorder import TrafficRecorder
from byteps_thc.transport.session import DpdkConfig, FaultConfig, JobKey, Session, Timeouts, UdpConfig, has_key
from byteps_thc.transport.transport import Transfer, Transport
from byteps_thc.wire.layout import MAX_PARTITIONS


@dataclass(frozen=True)
class NetworkConfig:
    """Where the servers are, and how to talk to them: see Session for all of it.

    timeouts: None: Session's, with operations limited to CompressionPolicy.deadline_s. With loss_tolerant or a quorum
    ranks may get different sums, so that their parameters drift apart: broadcast them from one rank every epoch, as the
    paper does.
    """

    servers: Sequence[str]
    job: int = 1
    quorum: int | None = None
    slots: int = 0
    window_bytes: int = 0
    loss_tolerant: bool = False
    timeouts: Timeouts | None = None
    backend: Literal["udp"] | UdpConfig | DpdkConfig = "udp"
    faults: FaultConfig | None = None
    key: JobKey | None = field(default=None, repr=False)

    def shared_settings(self) -> dict[str, Any]:
        """Return what must be the same on all workers: not addresses of their own."""
        return {
            "servers": list(self.servers),
            "job": self.job,
            "quorum": self.quorum,
            "loss_tolerant": self.loss_tolerant,
            "authenticated": has_key(self.key),
        }

    def open_session(self, config: ThcConfig, worker: int, workers: int, deadline_s: float) -> Session:
        """Join the servers' job; raises what Session raises."""
        return Session(
            self.servers,
            job=self.job,
            worker=worker,
            workers=workers,
            config=config,
            quorum=self.quorum,
            slots=self.slots,
            window_bytes=self.window_bytes,
            loss_tolerant=self.loss_tolerant,
            timeouts=self.timeouts or Timeouts(operation_s=deadline_s),
            backend=self.backend,
            faults=self.faults,
            key=self.key,
        )


class ServersTransport(Transport):
    """Norms and codes are numbered in separate streams, so a thread each keeps their order."""

    def __init__(self, session: Session, recorder: TrafficRecorder) -> None:
        self.session = session
        self.recorder = recorder
        self.codes_per_chunk = session.codes_per_packet
        self._numbers: dict[str, int] = {}  # of partitions, for good: another number would be another piece
        self._counted: dict[str, int] = {}

    @override
    def require_room(self, names: Collection[str]) -> None:
        count = len(self._numbers.keys() | set(names))
        if count > MAX_PARTITIONS:
            raise ConfigurationError(
                f"{count} partitions are more than {MAX_PARTITIONS}: raise ThcConfig.partition_bytes, and average the "
                "same names together every time"
            )

    @override
    def new_transfer(self, name: str, blocks: int, codes: int) -> Transfer:
        if name not in self._numbers:
            self.require_room([name])
        return ServersTransfer(self, self._numbers.setdefault(name, len(self._numbers)), blocks, codes)

    @override
    def close(self) -> None:
        self.session.close()

    def count(self) -> None:
        """Report what the session sent and repeated since the last call; by one thread."""
        now = self.session.counters()
        new = {name: now[name] - self._counted.get(name, 0) for name in now}
        self._counted = now
        self.recorder.add_traffic(sent_bytes=new["bytes_sent"], received_bytes=new["bytes_received"])
        self.recorder.add_losses(retransmissions=new["retransmissions"])


class ServersTransfer(Transfer):
    """The servers sum, so there is nothing to relay."""

    def __init__(self, transport: ServersTransport, partition: int, blocks: int, codes: int) -> None:
        self._transport, self._partition = transport, partition
        session = transport.session
        self._max_norms: F32 = np.zeros(blocks, np.float32)
        self._aggregate = session.new_aggregate(codes)
        self._contributions: U8 = np.zeros(session.chunks(codes), np.uint8)
        self.codes: U8 = np.zeros(_core.code_bytes(codes, session.code_bits), np.uint8)
        self._norm_stage: _comm.Operation
        self._code_stage: _comm.Operation

    @override
    def send_norms(self, norms: F32) -> None:
        self._norm_stage = self._transport.session.push_norms(self._partition, norms, self._max_norms)

    @override
    def wait_norms(self) -> F32:
        self._transport.session.wait(self._norm_stage)
        return self._max_norms

    @override
    def send_codes(self) -> None:
        self._code_stage = self._transport.session.push_codes(
            self._partition, self.codes, self._aggregate, self._contributions
        )

    @override
    def wait_sums(self) -> None:
        self._transport.session.wait(self._code_stage)
        lost_chunks = len(self._contributions) - int(np.count_nonzero(self._contributions))
        self._transport.recorder.add_losses(lost_chunks=lost_chunks)
        self._transport.count()

    @override
    def aggregate(self) -> tuple[U8 | U16, U8]:
        return self._aggregate, self._contributions
