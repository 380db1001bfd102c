"""A worker's session with thc-ps or a switch (C++20, worker_dpdk). Use byteps_thc._net.session, which wraps it.

Arrays are NumPy, C-contiguous and of exactly the dtype given; anything else raises InputError. Times are seconds.
"""

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]

ARITHMETIC: int
"""number of the arithmetic that this was built with"""

def has_dpdk() -> bool:
    """Whether this build has the DPDK back end."""

def resolve_server(server: str, *, lookup_s: float) -> str:
    """Return the IP:PORT of a server's HOST or HOST:PORT, as SessionConfig.set_servers() finds it."""

class SessionConfig:
    """Settings; Session checks them and raises ConfigurationError."""

    value_bits: int
    """8 or 16; 0: the narrowest that cannot overflow"""
    codes_per_packet: int
    """multiple of 64 in 64 .. 32768; 0: the largest that fits the path to every server"""
    run: int
    """64 bits, which training; 0: not told. The server refuses workers of another one"""
    settings_hash: int
    """32 bits; the server refuses workers of a job with different ones"""
    arithmetic: int
    """24 bits, arithmetic_version(); the server refuses workers of a job with another one"""
    loss_tolerant: bool

    def __init__(self, *, bits: int, table: list[int]) -> None: ...
    def set_servers(self, servers: list[str], *, lookup_s: float) -> None:
        """HOST or HOST:PORT each; partition p goes to servers[p mod len(servers)].

        Names are looked up, all within `lookup_s`. Raises ConfigurationError for a name with no address or several, and
        for a server that is listed twice; TransportError and DeadlineError when no name server answers.
        """

    @property
    def servers(self) -> list[str]:
        """IP:PORT each."""

    def set_job(self, *, job: int, worker: int, workers: int, quorum: int) -> None:
        """quorum 0: all workers."""

    def set_timeouts(self, *, connect_s: float, operation_s: float, loss_s: float) -> None:
        """Finite, or ConfigurationError; more than 1e9 s is 1e9 s."""

    @property
    def quorum(self) -> int: ...

class IoConfig:
    """Which packet back ends, and their settings; kernel UDP on any port by default."""

    def __init__(self) -> None: ...
    def use_udp(self, *, local: str, gso: bool, gro: bool) -> None:
        """local: HOST or HOST:PORT to bind; port 0 is any free one."""

    def use_dpdk(
        self,
        *,
        local: str,
        eal_args: list[str],
        devices: list[str],
        prefix_length: int,
        gateway: str,
        neighbours: list[tuple[str, str]],
        mtu_bytes: int,
    ) -> None:
        """Arguments of byteps_thc._net.session.DpdkConfig."""

    def use_key_file(self, path: str) -> None:
        """Tag every datagram with the job's key in this file; ConfigurationError unless it is a key file."""

    def use_key(self, key: bytes) -> None:
        """The same with a key of 32 bytes."""

    def add_faults(self, *, drop: float, duplicate: float, reorder: float, seed: int) -> None:
        """For tests: lose, copy and delay datagrams with these probabilities, up and down each."""

def ask_servers(config: SessionConfig, io: IoConfig, *, timeout_s: float, pace_s: float) -> list[str]:
    """Return "there", "leaving", "silent" or "other", which is a switch, for each server, without joining.

    config: with nothing left to choose. Takes until all have answered, or the time is over. pace_s: until the first
    repeat.
    """

class Operation:
    """A stage in flight."""

    @property
    def done(self) -> bool:
        """Whether the results are there, or the stage failed: Session.wait tells."""

class Session:
    """byteps_thc._net.session.Session. The constructor blocks until every server has welcomed the worker."""

    def __init__(self, config: SessionConfig, io: IoConfig) -> None: ...
    def push_norms(self, partition: int, norms: F32, max_norms: F32, *, compared: int = 0) -> Operation:
        """Start the preliminary stage: max_norms[i] becomes the maximum of norms[i] over the workers.

        compared: words at the beginning that must be the same on all workers, see wait().
        """

    def push_codes(self, partition: int, codes: U8, aggregate: U8 | U16, contributions: U8) -> Operation:
        """Start the main stage: len(aggregate) packed codes up, their sums down.

        contributions[ceil(len(aggregate) / codes_per_packet)]: workers in each packet of the aggregate.
        """

    def wait(self, operation: Operation, timeout_s: float | None) -> bool:
        """True when done; False when the time is over first. Raises why the stage failed, InputError for NaN.

        Also true if compared words differ; other results may then be missing.
        """

    def close(self) -> None:
        """Say GOODBYE; what is in flight fails."""

    def counters(self) -> dict[str, int]: ...
    def unanswered(self) -> list[tuple[float, int]]:
        """Return (seconds, port) of each server's longest unanswered packet; 0.0 s: none."""

    def heard(self) -> list[float]:
        """Return the seconds since the last packet of each server."""

    @property
    def is_of_switch(self) -> bool:
        """Whether the aggregator is a switch."""

    @property
    def config(self) -> SessionConfig:
        """Settings with nothing left to choose."""
