"""A worker's session with parameter servers: norms and codes up, maximum norms and aggregates down.

    with Session(["10.0.0.1"], job=1, worker=rank, workers=4, config=ThcConfig()) as session:
        session.wait(session.push_norms(0, norms, max_norms))
        session.wait(session.push_codes(0, codes, aggregate, contributions))

All workers must push the same partitions in the same order, as with NCCL: packets are numbered in that order, and the
server refuses (TransportError) to add partitions of different numbers to each other. What is in them is compared above
(pipeline/fingerprint.py). One polling thread sends and receives, or several; the
methods may be called from any thread.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import numpy as np

from byteps_thc import _comm
from byteps_thc.arrays import F32, U8, U16, value_dtype
from byteps_thc.config import ThcConfig, require_thc
from byteps_thc.errors import ConfigurationError, DeadlineError, InputError, ThcError
from byteps_thc.transport.quorum import Quorum, resolve_quorum
from byteps_thc.transport.run import Run, run_number, told_run
from byteps_thc.wire.layout import MAX_PARTITIONS, MAX_SHARDS
from byteps_thc.worker_limits import require_packet_workers

#: Path of a key file, or the 32 bytes of a key.
JobKey = str | os.PathLike[str] | bytes
_KEY_FILE_VARIABLE = "THC_KEY_FILE"


@dataclass(frozen=True)
class UdpConfig:
    """Kernel UDP."""

    local: str = "0.0.0.0:0"
    """IP or IP:PORT to bind; port 0: any free port. Polling thread t binds PORT + t. With a switch, the address its job
    description lists"""
    gso: bool = True
    """send bursts in one system call where the kernel can"""
    gro: bool = True
    """receive bursts in one system call where the kernel can"""


@dataclass(frozen=True)
class DpdkConfig:
    """DPDK ethdev, any poll-mode driver. DpdkUnavailableError when this build has no DPDK or EAL does not start."""

    local: str
    """own IP or IP:PORT; port 0: any. Polling thread t has PORT + t. With a switch, the address its job description
    lists"""
    eal_args: Sequence[str] = ()
    """EAL arguments, for example ("--no-huge", "-m", "256", "--vdev=net_af_packet0,iface=veth0"); once per process"""
    devices: Sequence[str] = ()
    """names or PCI addresses; empty: all that EAL has"""
    prefix_length: int = 24
    gateway: str = ""
    """next hop of other networks; empty: none"""
    neighbours: Sequence[tuple[str, str]] = ()
    """(IP, MAC) of next hops; others are found by ARP"""
    mtu_bytes: int = 1500
    verify_udp_checksum: bool = True
    """False for peers behind veth with checksum offload"""
    isolate: bool = False
    """leave all but the session's own packets to the kernel, by flow rules of the device (mlx5): ARP too, so give
    neighbours"""


@dataclass(frozen=True)
class FaultConfig:
    """Faults put in on purpose, for tests and demonstrations: probabilities of a datagram, up and down each."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    seed: int = 1


@dataclass(frozen=True)
class Timeouts:
    """Seconds. RTO: retransmission timeout, which follows the round-trip times between min and max."""

    connect_s: float = 10.0
    operation_s: float = 60.0
    """from the push to its last result"""
    loss_s: float = 0.05
    """loss-tolerant mode: after that a packet of codes without a result counts as lost"""
    rto_initial_s: float = 0.02
    rto_min_s: float = 0.0005
    rto_max_s: float = 0.2


class Session:
    """A connection of one worker to the servers of a job; a context manager.

    servers: "IP" or "IP:PORT" each; partition p goes to servers[p mod len(servers)]. job: 16 bits, the same for all
    workers and different from other jobs on the servers. worker: 0 .. workers - 1. config: the same on all workers.
    quorum: workers that complete a sum, as a number or as a share of them below 1 (0.9 is the paper's), None for all;
    the rest is left behind. slots, window_bytes: limits of what is in flight, 0 for the server's. loss_tolerant: codes
    are not repeated but given up after timeouts.loss_s and count as zero (section 6 of the paper); norms are always
    repeated, because workers that quantize with different norms add up wrong sums. backend: kernel UDP or DPDK with its
    settings. polling_threads: that send and receive, each with a socket or a queue of the DPDK device of its own;
    thread t of T has the packets of every T-th thread of each server (thc-ps --threads), so more than those are idle.
    Workers of a job need not have as many; both ends of a memif device do. faults: for tests. key: path of the key file
    of an authenticated job, or its 32 bytes; None: the file that the environment variable THC_KEY_FILE names, and a job
    without a key if there is none (docs/security.md). Servers must have the same key. run: which
    training this is, a number or a text that all its workers have and no other training; None: what the environment
    variable THC_RUN says, if anything. A server that has another training under this job number refuses the worker,
    whose gradients would be added to that one's; those that do not say a run are one training to it.

    Raises ConfigurationError for settings, TransportError and DpdkUnavailableError for the back end, DeadlineError when
    a server does not answer within timeouts.connect_s, ServerRefusedError when one refuses: other settings than the
    job's, a worker id that is taken.

    Open a session in the process that uses it: in a forked child its methods raise TransportError, and close() leaves
    the parent's session alone.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        job: int,
        worker: int,
        workers: int,
        config: ThcConfig,
        quorum: Quorum = None,
        slots: int = 0,
        window_bytes: int = 0,
        loss_tolerant: bool = False,
        timeouts: Timeouts | None = None,
        backend: Literal["udp"] | UdpConfig | DpdkConfig = "udp",
        polling_threads: int = 1,
        faults: FaultConfig | None = None,
        key: JobKey | None = None,
        run: Run | None = None,
    ) -> None:
        if isinstance(servers, str):
            raise ConfigurationError(f"servers must be a list of addresses, such as [{servers!r}], not one string")
        integers = {"job": job, "worker": worker, "workers": workers, "slots": slots, "window_bytes": window_bytes}
        for name, value in integers.items():
            _check_integer(name, value, 1 << 63, ConfigurationError)
        _check_polling_threads(polling_threads)
        require_thc(config, "Session")
        require_packet_workers(workers)
        resolved = config.resolve(workers)
        settings = _comm.SessionConfig(bits=config.bits, table=list(resolved.table.values))
        settings.set_servers(list(servers))
        settings.set_job(job=job, worker=worker, workers=workers, quorum=resolve_quorum(quorum, workers))
        settings.value_bits = resolved.value_bits
        settings.codes_per_packet = 0 if config.codes_per_packet == "auto" else config.codes_per_packet
        settings.slots = slots
        settings.settings_hash = resolved.shared_hash
        settings.run = run_number(told_run(run))
        settings.window_bytes = window_bytes
        settings.loss_tolerant = loss_tolerant
        _set_timeouts(settings, timeouts or Timeouts())
        io = _io_config(UdpConfig() if backend == "udp" else backend, faults)
        io.polling_threads = polling_threads
        _use_key(io, key)
        self._session = _comm.Session(settings, io)
        _open_sessions.add(self)
        #: codes in a full packet, which is a chunk of `contributions`
        self.codes_per_packet = self._session.config.codes_per_packet
        #: what this session was made with
        self.config, self.worker, self.workers = config, worker, workers
        #: bits of a code
        self.code_bits = config.bits
        #: bits of a coordinate of an aggregate
        self.value_bits = resolved.value_bits

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
        if not self._session.wait(stage, timeout):
            raise DeadlineError(f"not done after {timeout} s; still in flight")

    def chunks(self, count: int) -> int:
        """Packets, and elements of `contributions`, of a partition of `count` codes."""
        return -(-count // self.codes_per_packet)

    def new_aggregate(self, count: int) -> U8 | U16:
        """Return zeros that push_codes() can put the aggregate of `count` codes into."""
        return np.zeros(count, value_dtype(self.value_bits))

    def counters(self) -> dict[str, int]:
        """What this session sent, received, repeated and dropped since it began. Bytes include the 32-byte headers."""
        return self._session.counters()

    def thread_counters(self) -> list[dict[str, int]]:
        """The same of each polling thread."""
        return self._session.thread_counters()

    def close(self) -> None:
        """Leave the job; what is in flight fails with TransportError. May be called again."""
        self._session.close()


_open_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


@atexit.register
def _close_open_sessions() -> None:
    """Say GOODBYE and end the polling threads before static destructors take the devices away from them."""
    for session in list(_open_sessions):
        session.close()


def has_dpdk() -> bool:
    """Whether this build has the DPDK back end, and DPDK's libraries are installed here; loads them."""
    return _comm.has_dpdk()


def _check_integer(name: str, value: object, end: int, error: type[ThcError]) -> None:
    """Raise `error` unless value is an integer in 0 .. end - 1; C++ checks the rest."""
    if not isinstance(value, (int, np.integer)) or not 0 <= value < end:
        raise error(f"{name} must be an integer in 0 .. {end - 1}, not {value!r}")


def _check_polling_threads(value: object) -> None:
    if not isinstance(value, (int, np.integer)) or not 1 <= value <= MAX_SHARDS:
        raise ConfigurationError(
            f"polling_threads must be an integer in 1 .. {MAX_SHARDS}, not {value!r}: at most one for each packet "
            "thread of the servers (thc-ps --threads)"
        )


def _check_arrays(**arrays: object) -> None:
    """Raise InputError unless all are NumPy arrays; C++ checks dtype and size."""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise InputError(f"{name} is a {type(array).__name__}, not a NumPy array")


def _set_timeouts(settings: _comm.SessionConfig, timeouts: Timeouts) -> None:
    settings.set_timeouts(connect_s=timeouts.connect_s, operation_s=timeouts.operation_s, loss_s=timeouts.loss_s)
    settings.set_retransmission(initial_s=timeouts.rto_initial_s, min_s=timeouts.rto_min_s, max_s=timeouts.rto_max_s)


def has_key(key: JobKey | None) -> bool:
    """Whether a Session with this argument would use a key."""
    return key is not None or bool(os.environ.get(_KEY_FILE_VARIABLE))


def _use_key(io: _comm.IoConfig, key: JobKey | None) -> None:
    key = os.environ.get(_KEY_FILE_VARIABLE) or None if key is None else key
    if isinstance(key, bytes):
        io.use_key(key)
    elif isinstance(key, (str, os.PathLike)):
        io.use_key_file(os.fspath(key))
    elif key is not None:  # not shown: it may be a secret all the same
        raise ConfigurationError(f"key must be the path of a key file or 32 bytes, not a {type(key).__name__}")


def _io_config(backend: UdpConfig | DpdkConfig, faults: FaultConfig | None) -> _comm.IoConfig:
    io = _comm.IoConfig()
    if isinstance(backend, UdpConfig):
        io.use_udp(local=backend.local, gso=backend.gso, gro=backend.gro)
    elif isinstance(backend, DpdkConfig):
        io.use_dpdk(
            local=backend.local,
            eal_args=list(backend.eal_args),
            devices=list(backend.devices),
            prefix_length=backend.prefix_length,
            gateway=backend.gateway,
            neighbours=list(backend.neighbours),
            mtu_bytes=backend.mtu_bytes,
            verify_udp_checksum=backend.verify_udp_checksum,
            isolate=backend.isolate,
        )
    else:
        raise ConfigurationError(f"backend must be 'udp', a UdpConfig or a DpdkConfig, not {backend!r}")
    if faults is not None:
        io.add_faults(drop=faults.drop, duplicate=faults.duplicate, reorder=faults.reorder, seed=faults.seed)
    return io
