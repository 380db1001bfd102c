"""THC with parameter servers or a switch: codes go there, sums come back; the process group carries what is exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch.distributed as dist

from byteps_thc import _comm, _core
from byteps_thc.arrays import F32, U8, U16
from byteps_thc.config import ThcConfig
from byteps_thc.engines.handshake import require_same_settings
from byteps_thc.engines.lanes import open_lane
from byteps_thc.engines.policy import CompressionPolicy
from byteps_thc.engines.thc_engine import ThcEngine
from byteps_thc.errors import ConfigurationError
from byteps_thc.session import DpdkConfig, FaultConfig, Session, Timeouts, UdpConfig
from byteps_thc.statistics import StatsRecorder

_MAX_PARTITIONS = 1 << 16  # `partition` of the wire header has 16 bits


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
        )


class NetworkEngine(ThcEngine):
    """Averages over the ranks of a process group (gloo or NCCL) through thc-ps or a switch.

    All ranks of the group must make it, with the same settings but local addresses (ConfigurationError naming what
    differs). Raises what Session raises when the servers cannot be joined.
    """

    def __init__(
        self, process_group: dist.ProcessGroup, config: ThcConfig, network: NetworkConfig, policy: CompressionPolicy
    ) -> None:
        workers, worker = process_group.size(), process_group.rank()
        exact = open_lane(process_group, policy.deadline_s)
        shared = {"servers": list(network.servers), "job": network.job, "quorum": network.quorum}
        settings = {"engine": "network"} | config.model_dump() | policy.model_dump() | shared
        require_same_settings(exact, workers, settings | {"loss_tolerant": network.loss_tolerant})
        recorder = StatsRecorder()
        session = network.open_session(config, worker, workers, policy.deadline_s)
        super().__init__(
            config.resolve(workers),
            policy,
            worker=worker,
            transport=NetworkTransport(session, recorder),
            exact=exact.sum_,
            recorder=recorder,
        )


class NetworkTransport:
    """See transport.Transport. Norms and codes are numbered in separate streams, so a thread each keeps their order."""

    def __init__(self, session: Session, recorder: StatsRecorder) -> None:
        self.session = session
        self.recorder = recorder
        self.codes_per_chunk = session.codes_per_packet
        self._partitions = 0
        self._counted: dict[str, int] = {}

    def new_transfer(self, blocks: int, codes: int) -> NetworkTransfer:
        """See Transport."""
        if self._partitions == _MAX_PARTITIONS:
            raise ConfigurationError(f"more than {_MAX_PARTITIONS} partitions: raise ThcConfig.partition_bytes")
        self._partitions += 1
        return NetworkTransfer(self, self._partitions - 1, blocks, codes)

    def close(self) -> None:
        """See Transport."""
        self.session.close()

    def count(self) -> None:
        """Report what the session sent and repeated since the last call; by one thread."""
        now = self.session.counters()
        new = {name: now[name] - self._counted.get(name, 0) for name in now}
        self._counted = now
        self.recorder.add_traffic(sent_bytes=new["bytes_sent"], received_bytes=new["bytes_received"])
        self.recorder.add_losses(retransmissions=new["retransmissions"])


class NetworkTransfer:
    """See transport.Transfer. The servers sum, so there is nothing to relay."""

    def __init__(self, transport: NetworkTransport, partition: int, blocks: int, codes: int) -> None:
        self._transport, self._partition = transport, partition
        session = transport.session
        self._max_norms: F32 = np.zeros(blocks, np.float32)
        self._aggregate = session.new_aggregate(codes)
        self._contributions: U8 = np.zeros(session.chunks(codes), np.uint8)
        #: See Transfer.
        self.codes: U8 = np.zeros(_core.code_bytes(codes, session.code_bits), np.uint8)
        self._norm_stage: _comm.Handle
        self._code_stage: _comm.Handle

    def send_norms(self, norms: F32) -> None:
        """See Transfer."""
        self._norm_stage = self._transport.session.push_norms(self._partition, norms, self._max_norms)

    def wait_norms(self) -> F32:
        """See Transfer."""
        self._transport.session.wait_stage(self._norm_stage)
        return self._max_norms

    def send_codes(self) -> None:
        """See Transfer."""
        self._code_stage = self._transport.session.push_codes(
            self._partition, self.codes, self._aggregate, self._contributions
        )

    def wait_codes(self) -> None:
        """See Transfer."""

    def send_sums(self) -> None:
        """See Transfer."""

    def wait_sums(self) -> None:
        """See Transfer."""
        self._transport.session.wait_stage(self._code_stage)
        lost_chunks = len(self._contributions) - int(np.count_nonzero(self._contributions))
        self._transport.recorder.add_losses(lost_chunks=lost_chunks)
        self._transport.count()

    def aggregate(self) -> tuple[U8 | U16, U8]:
        """See Transfer."""
        return self._aggregate, self._contributions
