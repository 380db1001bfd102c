"""A worker's session with parameter servers: norms and codes up, maximum norms and aggregates down.

    with Session(["10.0.0.1"], job=1, run="monday", worker=rank, workers=4, codes=ServerCodes()) as session:
        session.wait(session.push_norms(0, norms, max_norms))
        session.wait(session.push_codes(0, codes, aggregate, contributions))

All workers must push the same partitions in the same order: the server refuses to add partitions of different numbers
(TransportError). _engine/fingerprint.py compares their contents. Any thread may call the methods.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np

from byteps_thc._base.arrays import F32, U8, U16, value_dtype
from byteps_thc._base.errors import ConfigurationError, DeadlineError, InputError, ThcError
from byteps_thc._base.limits import require_packet_workers
from byteps_thc._base.wire.layout import MAX_PARTITIONS
from byteps_thc._native import _comm
from byteps_thc._net.ending import close_at_exit
from byteps_thc._net.network_settings import (
    DpdkConfig,
    JobKey,
    NetworkSettings,
    Timeouts,
    UdpConfig,
    inquiry_io_config,
    io_config,
    resolve_quorum,
)
from byteps_thc._net.run import run_number, run_of_launcher, told_run
from byteps_thc._scheme.adding.server_codes import ServerCodes, require_codes
from byteps_thc._scheme.arithmetic import arithmetic_version

__all__ = ["DpdkConfig", "JobKey", "NetworkSettings", "Session", "Timeouts", "UdpConfig"]

#: Length of a wait before it looks for silent servers.
_LOOK_S = 1.0


@dataclass(frozen=True, eq=False, repr=False)
class Session(NetworkSettings):
    """Connect one worker to the servers of a job; a context manager.

    Open a session in the process that uses it. In a forked child its methods raise TransportError, and close() keeps
    the parent's session open.

    Raises ConfigurationError for invalid settings, TransportError or DpdkUnavailableError if the back end fails,
    DeadlineError if a server does not answer within timeouts.connect_s, and ServerRefusedError if a server rejects the
    worker: other settings than the job's, or a worker id in use.
    """

    servers: Sequence[str]
    """Addresses, "HOST" or "HOST:PORT" each, of all thc-ps or of one switch.
    A HOST is an IPv4 address, an IPv6 address in brackets, or a name, looked up once within timeouts.connect_s.
    Partition p travels to servers[p mod len(servers)]."""
    job: int = field(kw_only=True)
    """Number of the job on the servers, 0 to 65535, shared by all workers."""
    worker: int = field(kw_only=True)
    """Number of this worker, 0 .. workers - 1."""
    workers: int = field(kw_only=True)
    """Number of workers."""
    codes: ServerCodes = field(kw_only=True)
    """A ServerCodes, the same on all workers."""
    _session: _comm.Session = field(init=False)
    _silence: "SilenceLog" = field(init=False)

    # Identity, because settings may be lists.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.servers, str):
            raise ConfigurationError(f"servers must be a list of addresses, such as [{self.servers!r}], not one string")
        for name, end in (("job", 1 << 16), ("worker", 1 << 8), ("workers", 1 << 63)):
            _check_integer(name, getattr(self, name), end, ConfigurationError)
        require_codes(self.codes, "Session")
        require_packet_workers(self.workers)
        object.__setattr__(self, "_session", _comm.Session(_session_config(self), io_config(self)))
        object.__setattr__(self, "_silence", SilenceLog(self.addresses, (self.timeouts or Timeouts()).operation_s))
        # Say GOODBYE, and end the polling thread before static destructors destroy its devices.
        close_at_exit(self.close)

    @cached_property
    def codes_per_packet(self) -> int:
        """Codes in a full packet, a chunk of `contributions`."""
        return self._session.config.codes_per_packet

    @property
    def addresses(self) -> list[str]:
        """IP:PORT of each server."""
        return self._session.config.servers

    @cached_property
    def compares_sums(self) -> bool:
        """Whether workers compare results: a switch's packets have no checksum, and all workers must get the same."""
        return self._session.is_of_switch and not self.may_drift(self.workers)

    @property
    def code_bits(self) -> int:
        """Bits of a code."""
        return self.codes.bits

    @cached_property
    def value_bits(self) -> int:
        """Bits of a coordinate of an aggregate."""
        return self._session.config.value_bits

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def push_norms(self, partition: int, norms: F32, max_norms: F32, *, compared: int = 0) -> _comm.Operation:
        """Start the preliminary stage alone.

        partition: number of the partition, from 0.
        norms: float32[B], copied.
        max_norms: float32[B], in use until wait(); receives the maximum over the workers, or zeros if a quorum excluded
            this worker.
        compared: number of first words that must be the same on all workers, default 0. Numbers of norms may differ. If
            the words differ, wait() returns at once, and other norms may be missing.

        Raises InputError for invalid arguments, or the error that ended the session.
        """
        _check_integer("partition", partition, MAX_PARTITIONS, InputError)
        _check_arrays(norms=norms, max_norms=max_norms)
        _check_integer("compared", compared, len(norms) + 1, InputError)
        return self._session.push_norms(partition, norms, max_norms, compared=compared)

    def push_codes(self, partition: int, codes: U8, aggregate: U8 | U16, contributions: U8) -> _comm.Operation:
        """Start the main stage alone. All arrays are in use until wait().

        partition: number of the partition, from 0.
        codes: uint8, packed codes of code_bits bits.
        aggregate: uint8 or uint16 (value_bits), one element for every code.
        contributions: uint8[chunks(len(aggregate))].

        If a quorum excluded this worker from the norms, thc-ps does not add its codes, and a switch adds them.

        Raises InputError for invalid arguments, or the error that ended the session.
        """
        _check_integer("partition", partition, MAX_PARTITIONS, InputError)
        _check_arrays(codes=codes, aggregate=aggregate, contributions=contributions)
        return self._session.push_codes(partition, codes, aggregate, contributions)

    def wait(self, stage: _comm.Operation, timeout: float | None = None) -> None:
        """Wait for push_norms() or push_codes().

        stage: the result of either.
        timeout: seconds; default: until timeouts.operation_s ends the stage.

        Raises DeadlineError after `timeout`, with the stage still in flight, or the error of the stage.
        """
        if not self.is_done(stage, timeout):
            raise DeadlineError(f"the stage is not done after {timeout} s: it is still in flight, wait() again")

    def is_done(self, stage: _comm.Operation, timeout: float | None) -> bool:
        """Wait as wait() does, and return False if the stage is still in flight after `timeout`.

        stage: the result of push_norms() or push_codes().
        timeout: seconds, or None.

        Raises the error of the stage.
        """
        left_s = math.inf if timeout is None else timeout
        until_s = time.monotonic() + left_s
        while not self._session.wait(stage, left_s if math.isnan(left_s) else min(_LOOK_S, max(left_s, 0.0))):
            self._silence.look(self._session.heard(), self._session.unanswered())
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
        return True

    def chunks(self, count: int) -> int:
        """Return the packets, and elements of `contributions`, of a partition with `count` codes."""
        return -(-count // self.codes_per_packet)

    def new_aggregate(self, count: int) -> U8 | U16:
        """Return zeros for the aggregate of `count` codes in push_codes()."""
        return np.zeros(count, value_dtype(self.value_bits))

    def counters(self) -> dict[str, int]:
        """Return numbers of sent, received, repeated and dropped packets, and bytes including the 32-byte headers."""
        return self._session.counters()

    def unanswered(self) -> list[tuple[float, int]]:
        """Return (seconds, port) of each server's oldest unanswered packet, 0.0 seconds if all are answered.

        A notice that other workers are missing counts as an answer.
        """
        return self._session.unanswered()

    def heard(self) -> list[float]:
        """Return the seconds passed after the last packet from each server."""
        return self._session.heard()

    def inquiry(self) -> Callable[[float, float], list[str]]:
        """Return a function that probes all servers within a number of seconds, also after the session's end.

        Its second argument is the round trip of results in seconds: repeats wait for as long. It returns "there",
        "leaving" (a draining thc-ps), "silent" or "other" (a switch) for each server, over kernel UDP.
        """
        settings = _session_config(self)
        settings.set_servers(self.addresses, lookup_s=0)
        settings.codes_per_packet = self.codes_per_packet
        io = inquiry_io_config(self)
        return lambda timeout_s, round_trip_s: _comm.ask_servers(
            settings, io, timeout_s=timeout_s, pace_s=max(_ASK_AGAIN_S, round_trip_s)
        )

    def close(self) -> None:
        """Leave the job. Operations in flight fail with TransportError. Repeated calls are allowed."""
        self._session.close()


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
    codes, workers = session.codes, session.workers
    resolved = codes.resolve(workers)
    settings = _comm.SessionConfig(bits=resolved.table.bits, table=list(resolved.table.values))
    quorum = resolve_quorum(session.quorum, workers)
    settings.set_job(job=session.job, worker=session.worker, workers=workers, quorum=quorum)
    settings.value_bits = resolved.value_bits
    settings.codes_per_packet = 0 if codes.codes_per_packet == "auto" else codes.codes_per_packet
    settings.settings_hash = resolved.shared_hash
    settings.arithmetic = arithmetic_version()
    settings.run = run_number(told_run(session.run) or run_of_launcher())
    settings.loss_tolerant = session.loss_tolerant
    timeouts = session.timeouts or Timeouts()
    settings.set_timeouts(connect_s=timeouts.connect_s, operation_s=timeouts.operation_s, loss_s=timeouts.loss_s)
    settings.set_servers(list(session.servers), lookup_s=timeouts.connect_s)
    return settings


_logger = logging.getLogger("byteps_thc")

#: Shortest time from a probe of a server to its repeat.
_ASK_AGAIN_S = 0.05
#: Silence of a server that is logged. Ranks with failover move earlier.
SILENT_S = 5.0


class SilenceLog:
    """Logs each silent server once, and again after an answer. Thread-safe. deadline_s: timeouts.operation_s."""

    def __init__(self, servers: Sequence[str], deadline_s: float) -> None:
        self._servers, self._deadline_s = tuple(servers), deadline_s
        self._said = [False] * len(self._servers)
        self._lock = threading.Lock()

    def look(self, heard: Sequence[float], unanswered: Sequence[tuple[float, int]]) -> None:
        """Log from the current Session.heard() and Session.unanswered()."""
        with self._lock:
            for number, (ago_s, (waiting_s, port)) in enumerate(zip(heard, unanswered, strict=True)):
                if ago_s < SILENT_S:
                    self._said[number] = False
                elif waiting_s >= SILENT_S and not self._said[number]:
                    self._said[number] = True
                    self._say(number, ago_s, waiting_s, port)

    def _say(self, number: int, ago_s: float, waiting_s: float, port: int) -> None:
        _logger.warning(
            f"server {self._servers[number]} has been silent for {ago_s:.1f} s: a packet to its port {port} has had no "
            f"answer for {waiting_s:.1f} s, although this worker repeats it, nor has a question whether the server is "
            "there. The step resumes when the server answers; with failover ranks use other servers meanwhile, without "
            f"failover the step ends with DeadlineError after {self._deadline_s:g} s. Check that thc-ps runs there, "
            "and the path to it"
        )
