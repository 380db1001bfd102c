"""A worker's session with parameter servers: norms and codes up, maximum norms and aggregates down.

    with Session(["10.0.0.1"], job=1, run="monday", worker=rank, workers=4, config=ThcConfig()) as session:
        session.wait(session.push_norms(0, norms, max_norms))
        session.wait(session.push_codes(0, codes, aggregate, contributions))

All workers must push the same partitions in the same order, as with NCCL: packets are numbered in that order, and the
server refuses (TransportError) to add partitions of different numbers to each other. What is in them is compared above
(_engine/fingerprint.py). One thread sends and receives; the methods may be called
from any thread.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Self

import numpy as np

from byteps_thc._native import _comm
from byteps_thc._net.ending import close_at_exit
from byteps_thc._net.network_settings import (
    DpdkConfig,
    FaultConfig,
    JobKey,
    NetworkSettings,
    Timeouts,
    UdpConfig,
    inquiry_io_config,
    io_config,
    resolve_quorum,
)
from byteps_thc._net.run import run_number, run_of_launcher, told_run
from byteps_thc._scheme.arithmetic import arithmetic_version
from byteps_thc._scheme.arrays import F32, U8, U16, value_dtype
from byteps_thc._scheme.config import ThcConfig, require_thc
from byteps_thc._scheme.errors import ConfigurationError, DeadlineError, InputError, ThcError
from byteps_thc._scheme.limits import require_packet_workers
from byteps_thc._scheme.wire.layout import MAX_PARTITIONS

__all__ = [
    "DpdkConfig",
    "FaultConfig",
    "JobKey",
    "NetworkSettings",
    "Session",
    "Timeouts",
    "UdpConfig",
    "has_dpdk",
]

#: How long a wait lasts before it looks for silent servers.
_LOOK_S = 1.0


@dataclass(frozen=True, eq=False, repr=False)
class Session(NetworkSettings):
    """A connection of one worker to the servers of a job; a context manager.

    Raises ConfigurationError for settings, TransportError and DpdkUnavailableError for the back end, DeadlineError when
    a server does not answer within timeouts.connect_s, ServerRefusedError when one refuses: other settings than the
    job's, a worker id that is taken.

    Open a session in the process that uses it: in a forked child its methods raise TransportError, and close() leaves
    the parent's session alone.
    """

    servers: Sequence[str]
    """"HOST" or "HOST:PORT" each, an IPv4 address or a name; partition p goes to servers[p mod len(servers)]. Names are
    looked up once, within timeouts.connect_s"""
    job: int = field(kw_only=True)
    """16 bits, the same for all workers and different from other jobs on the servers"""
    worker: int = field(kw_only=True)
    """0 .. workers - 1"""
    workers: int = field(kw_only=True)
    config: ThcConfig = field(kw_only=True)
    """the same on all workers"""
    _session: _comm.Session = field(init=False)
    _silence: SilenceLog = field(init=False)

    # A session is itself, whatever its settings, which may be lists.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.servers, str):
            raise ConfigurationError(f"servers must be a list of addresses, such as [{self.servers!r}], not one string")
        for name, end in (("job", 1 << 16), ("worker", 1 << 8), ("workers", 1 << 63)):
            _check_integer(name, getattr(self, name), end, ConfigurationError)
        require_thc(self.config, "Session")
        require_packet_workers(self.workers)
        self.config.warn_of_ignored_bits("servers and switches", self.worker)
        object.__setattr__(self, "_session", _comm.Session(_session_config(self), io_config(self)))
        operation_s = (self.timeouts or Timeouts()).operation_s
        object.__setattr__(self, "_silence", SilenceLog(self.addresses, operation_s))
        # Say GOODBYE, and end the polling thread before static destructors take the devices away from them.
        close_at_exit(self.close)

    @cached_property
    def codes_per_packet(self) -> int:
        """Codes in a full packet, which is a chunk of `contributions`."""
        return self._session.config.codes_per_packet

    @property
    def addresses(self) -> list[str]:
        """IP:PORT of each server."""
        return self._session.config.servers

    @property
    def code_bits(self) -> int:
        """Bits of a code."""
        return self.config.code_bits

    @cached_property
    def value_bits(self) -> int:
        """Bits of a coordinate of an aggregate."""
        return self._session.config.value_bits

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def push_norms(self, partition: int, norms: F32, max_norms: F32, *, compared: int = 0) -> _comm.Operation:
        """Start the preliminary stage alone.

        norms: float32[B], copied. max_norms: float32[B], not to be touched until wait(); becomes the maximum
        over the workers, zeros where a quorum has left this one behind. compared: so many words at the beginning must
        be the same on all workers, whoever has how many norms: wait() returns as soon as they have come back and are
        not, and nothing else of the stage is sure to come then. Raises InputError, or why the session ended.
        """
        _check_integer("partition", partition, MAX_PARTITIONS, InputError)
        _check_arrays(norms=norms, max_norms=max_norms)
        _check_integer("compared", compared, len(norms) + 1, InputError)
        return self._session.push_norms(partition, norms, max_norms, compared=compared)

    def push_codes(self, partition: int, codes: U8, aggregate: U8 | U16, contributions: U8) -> _comm.Operation:
        """Start the main stage alone.

        codes: packed, code_bits each. aggregate: uint8 or uint16 (value_bits), one element for every code.
        contributions: uint8[chunks(len(aggregate))]. None of them may be touched until wait(). Codes of a partition of
        which a quorum has left this worker behind in the norms are not added (thc-ps; a switch adds them). Raises
        InputError, or why the session ended.
        """
        _check_integer("partition", partition, MAX_PARTITIONS, InputError)
        _check_arrays(codes=codes, aggregate=aggregate, contributions=contributions)
        return self._session.push_codes(partition, codes, aggregate, contributions)

    def wait(self, stage: _comm.Operation, timeout: float | None = None) -> None:
        """Wait for push_norms() or push_codes(). Raises why it failed, or DeadlineError after `timeout` seconds; the
        stage is still in flight then, and fails itself after timeouts.operation_s."""
        if not self.is_done(stage, timeout):
            raise DeadlineError(f"the stage is not done after {timeout} s: it is still in flight, wait() again")

    def is_done(self, stage: _comm.Operation, timeout: float | None) -> bool:
        """As wait(), but False when it is still in flight after `timeout` seconds."""
        left_s = math.inf if timeout is None else timeout
        until_s = time.monotonic() + left_s
        while not self._session.wait(stage, left_s if math.isnan(left_s) else min(_LOOK_S, max(left_s, 0.0))):
            self._silence.look(self._session.heard(), self._session.unanswered())
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
        return True

    def chunks(self, count: int) -> int:
        """Packets, and elements of `contributions`, of a partition of `count` codes."""
        return -(-count // self.codes_per_packet)

    def new_aggregate(self, count: int) -> U8 | U16:
        """Return zeros that push_codes() can put the aggregate of `count` codes into."""
        return np.zeros(count, value_dtype(self.value_bits))

    def counters(self) -> dict[str, int]:
        """What this session sent, received, repeated and dropped since it began. Bytes include the 32-byte headers."""
        return self._session.counters()

    def unanswered(self) -> list[tuple[float, int]]:
        """Return for how many seconds each server has not answered a packet at most, and from which port.

        0.0 seconds if it has answered all packets. A notice that other workers are missing is an answer.
        """
        return self._session.unanswered()

    def heard(self) -> list[float]:
        """Return how many seconds ago anything arrived from each server."""
        return self._session.heard()

    def inquiry(self) -> Callable[[float], list[str]]:
        """Return what asks all servers, within so many seconds, whether they are there, also when this has ended.

        It gives "there", "leaving" (a thc-ps that drains), "silent" or "other" (a switch) for each. Kernel UDP, with a
        socket of its own.
        """
        settings = _session_config(self)
        settings.codes_per_packet = self.codes_per_packet
        io = inquiry_io_config(self)
        return lambda timeout_s: _comm.ask_servers(settings, io, timeout_s=timeout_s)

    def close(self) -> None:
        """Leave the job; what is in flight fails with TransportError. May be called again."""
        self._session.close()


def has_dpdk() -> bool:
    """Whether this build has the DPDK back end, and DPDK's libraries are installed here; loads them."""
    return _comm.has_dpdk()


def _check_integer(name: str, value: object, end: int, error: type[ThcError]) -> None:
    """Raise `error` unless value is an integer in 0 .. end - 1; C++ checks the rest."""
    if not isinstance(value, (int, np.integer)) or not 0 <= value < end:
        raise error(f"{name} must be an integer in 0 .. {end - 1}, not {value!r}")


def _check_arrays(**arrays: object) -> None:
    """Raise InputError unless all are NumPy arrays; C++ checks dtype and size."""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise InputError(f"{name} is a {type(array).__name__}, not a NumPy array")


def _session_config(session: Session) -> _comm.SessionConfig:
    config, workers = session.config, session.workers
    resolved = config.resolve(workers)
    settings = _comm.SessionConfig(bits=resolved.table.bits, table=list(resolved.table.values))
    settings.set_job(
        job=session.job, worker=session.worker, workers=workers, quorum=resolve_quorum(session.quorum, workers)
    )
    settings.value_bits = resolved.value_bits
    settings.codes_per_packet = 0 if config.codes_per_packet == "auto" else config.codes_per_packet
    settings.settings_hash = resolved.shared_hash
    settings.arithmetic = arithmetic_version()
    settings.run = run_number(told_run(session.run) or run_of_launcher())
    settings.loss_tolerant = session.loss_tolerant
    timeouts = session.timeouts or Timeouts()
    settings.set_timeouts(connect_s=timeouts.connect_s, operation_s=timeouts.operation_s, loss_s=timeouts.loss_s)
    settings.set_servers(list(session.servers), lookup_s=timeouts.connect_s)
    return settings


_logger = logging.getLogger("byteps_thc")

#: Seconds without an answer after which the log says so. Moves of ranks with failover come earlier.
SILENT_S = 5.0


class SilenceLog:
    """Says once of each server that it is silent, and again only if it has answered in between. For several threads.

    servers: their addresses. deadline_s: how long a partition may have no result.
    """

    def __init__(self, servers: Sequence[str], deadline_s: float) -> None:
        self._servers, self._deadline_s = tuple(servers), deadline_s
        self._said = [False] * len(self._servers)
        self._lock = threading.Lock()

    def look(self, heard: Sequence[float], unanswered: Sequence[tuple[float, int]]) -> None:
        """Take in what Session.heard() and Session.unanswered() say now."""
        with self._lock:
            for number, (ago_s, (waiting_s, port)) in enumerate(zip(heard, unanswered, strict=True)):
                if ago_s < SILENT_S:
                    self._said[number] = False
                elif waiting_s >= SILENT_S and not self._said[number]:
                    self._said[number] = True
                    self._say(number, ago_s, waiting_s, port)

    def _say(self, number: int, ago_s: float, waiting_s: float, port: int) -> None:
        _logger.warning(
            "server %s has been silent for %.1f s: a packet to its port %d has had no answer for %.1f s, although this "
            "worker repeats it, nor has a question whether the server is there. The step resumes when the server "
            "answers; with failover ranks use other servers meanwhile, without failover the step ends with "
            "DeadlineError after %g s. Check that thc-ps runs there, and the path to it",
            self._servers[number],
            ago_s,
            port,
            waiting_s,
            self._deadline_s,
        )
