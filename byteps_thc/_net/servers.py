"""THC with parameter servers or a switch: codes go up, sums come back."""

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from typing_extensions import override

from byteps_thc._base.arrays import F32, U8, U16, HostZeros, value_dtype
from byteps_thc._base.environment import VARIABLES, variable, whole_number
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.limits import MAX_RANKS
from byteps_thc._base.wire.layout import MAX_JOB_ID, MAX_PARTITIONS
from byteps_thc._native import _core
from byteps_thc._net import network_settings
from byteps_thc._net.failover.session import FailoverSession
from byteps_thc._net.run import told_run
from byteps_thc._net.session import Session
from byteps_thc._net.transport import DIGEST_WORDS, FINGERPRINT_WORDS, TrafficRecorder, Transfer, Transport
from byteps_thc._scheme.adding.server_codes import ServerCodes, require_codes


@dataclass(frozen=True)
class NetworkConfig(network_settings.NetworkSettings):
    """Addresses of servers or a switch, and the settings of the connection.

    run: default: THC_RUN, or a random number of rank 0 that the ranks of a process group share.

    With loss_tolerant or a quorum, ranks may get different sums, so their parameters drift apart. Use a
    ParameterSynchronizer, as the paper synchronises every epoch.
    """

    servers: Sequence[str]
    """Addresses, "HOST" or "HOST:PORT" each, of all thc-ps or of one switch."""
    job: int = 1
    """Number of the job on the servers, 0 to 65535, shared by all workers."""
    failover: bool | None = None
    """Let ranks of a process group resume with other servers if a server fails or drains.
    None: on with several thc-ps on kernel UDP, without a quorum or loss_tolerant, with a process group. True also
    supports one server, which may then be restarted (docs/servers.md)."""
    codes: ServerCodes = field(default_factory=ServerCodes.from_environment)
    """A ServerCodes. Default: THC_CONFIG, or its defaults."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_codes(self.codes, "NetworkConfig")

    @classmethod
    def from_environment(cls) -> Self:
        """Return the settings of THC_SERVERS and the other variables of the network (docs/settings.md).

        Variables: THC_SERVERS, THC_JOB, THC_RUN, THC_BACKEND, THC_LOCAL and THC_EAL_ARGS.

        Under torchrun, ranks of one host share the variables: each binds the port of THC_LOCAL plus LOCAL_RANK.

        Raises ConfigurationError for invalid values, and if no server is named.
        """
        settings = network_settings.network_from_environment()
        if not settings.get("servers"):
            text = variable("SERVERS")
            wrong = f"THC_SERVERS={text!r} has no address" if text else "THC_SERVERS is not set"
            raise ConfigurationError(f"{wrong}: set it to the addresses of thc-ps or a switch, such as 10.0.0.1")
        if "lanes" in settings:
            raise ConfigurationError("THC_SERVERS: lanes is a setting of BytePS alone: omit it")
        job = whole_number("THC_JOB", variable("JOB") or VARIABLES["JOB"].default, MAX_JOB_ID)
        local_rank = whole_number("LOCAL_RANK", os.environ.get("LOCAL_RANK", "0"), MAX_RANKS - 1)
        backend = network_settings.backend_from_environment(local_rank) or "udp"
        return cls(job=job, **settings | {"backend": backend, "run": variable("RUN") or None})

    def shared_settings(self, workers: int) -> dict[str, object]:
        """Return the settings that must be the same on all `workers` workers."""
        return self.codes.model_dump() | {
            "servers": list(self.servers),
            "job": self.job,
            "quorum": network_settings.resolve_quorum(self.quorum, workers),
            "loss_tolerant": self.loss_tolerant,
            "authenticated": self.key is not None or bool(variable("KEY_FILE")),
            "run": told_run(self.run),
            "failover": self.goes_on(workers),
        }

    def goes_on(self, workers: int) -> bool:
        """Return whether workers with a process group resume with other servers (`failover`).

        Raises ConfigurationError if failover=True is not supported with the other settings.
        """
        reason = None
        if self.may_drift(workers):
            reason = "a quorum or loss_tolerant, where a sum that is computed again may be another one"
        elif isinstance(self.backend, network_settings.DpdkConfig):
            reason = "DPDK, whose devices a process opens once"
        if self.failover and reason is not None:
            raise ConfigurationError(f"failover=True does not work with {reason}: omit it")
        wanted = len(self.servers) > 1 if self.failover is None else self.failover
        return wanted and reason is None and workers > 1

    def open_session(self, worker: int, workers: int, deadline_s: float) -> Session:
        """Join the servers' job.

        worker: this worker's number, 0 .. workers - 1.
        workers: number of workers.
        deadline_s: seconds; operation_s if `timeouts` is None.

        Raises the errors of Session.
        """
        timeouts = self.timeouts or network_settings.Timeouts(operation_s=deadline_s)
        settings = network_settings.settings_of(self) | {"timeouts": timeouts}
        return Session(self.servers, job=self.job, worker=worker, workers=workers, codes=self.codes, **settings)


class ServersTransport(Transport):
    """The transport over a session. A thread each pushes norms and codes.

    Partitions are numbered in the order of their norms, whatever their names: workers with different gradients meet on
    the same server, where fingerprints are compared (_engine/fingerprint.py), instead of waiting on two.
    zeros: allocates the arrays of codes and sums, which packets use directly.
    """

    def __init__(
        self, session: Session | FailoverSession, recorder: TrafficRecorder, zeros: HostZeros = np.zeros
    ) -> None:
        self.session, self.recorder, self.zeros = session, recorder, zeros
        self.codes_per_chunk = session.codes_per_packet
        self.compared_words = FINGERPRINT_WORDS + (DIGEST_WORDS if session.compares_sums else 0)
        self.servers = len(session.servers)  # constant, even after failover: pieces stay as they are
        self.sent_partitions = itertools.count()  # by one thread
        self._counted: dict[str, int] = {}

    @override
    def new_transfer(self, name: str, norms: int, codes: int) -> Transfer:
        return ServersTransfer(self, norms, codes)

    @override
    def close(self) -> None:
        self.session.close()

    def count(self) -> None:
        """Report packets sent and repeated since the last call; by one thread."""
        now = self.session.counters()
        new = {name: now[name] - self._counted.get(name, 0) for name in now}
        self._counted = now
        self.recorder.add(
            sent_bytes=new["bytes_sent"], received_bytes=new["bytes_received"], retransmissions=new["retransmissions"]
        )


class ServersTransfer(Transfer):
    """A partition; the servers sum, so nothing is relayed."""

    def __init__(self, transport: ServersTransport, norms: int, codes: int) -> None:
        self._transport, self._partition = transport, 0
        session, zeros = transport.session, transport.zeros
        self._max_norms: F32 = np.zeros(norms, np.float32)
        self._aggregate: U8 | U16 = zeros(codes, value_dtype(session.value_bits))
        self._contributions: U8 = zeros(session.chunks(codes), np.uint8)
        self.codes: U8 = zeros(_core.code_bytes(codes, session.code_bits), np.uint8)
        self._norm_stage: Any
        self._code_stage: Any

    @override
    def send_norms(self, norms: F32) -> None:
        self._partition = next(self._transport.sent_partitions) % MAX_PARTITIONS
        self._norm_stage = self._transport.session.push_norms(
            self._partition, norms, self._max_norms, compared=self._transport.compared_words
        )

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
        chunks, recorder = len(self._contributions), self._transport.recorder
        expected, arrived = chunks * self._transport.session.workers, int(self._contributions.sum(dtype=np.int64))
        recorder.add(
            lost_chunks=chunks - int(np.count_nonzero(self._contributions)),
            expected_contributions=expected,
            missing_contributions=expected - arrived,
        )
        self._transport.count()

    @override
    def digest(self) -> int:
        if self._transport.compared_words == FINGERPRINT_WORDS:
            return 0
        return _core.checksum(self._max_norms) ^ _core.checksum(self._aggregate)

    @override
    def aggregate(self) -> tuple[U8 | U16, U8]:
        return self._aggregate, self._contributions
