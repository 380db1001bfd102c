"""What a plan says has to be done: cables, files, set-up of hosts, processes. Nothing here does it.

Every path is absolute and every address literal, so that whoever runs a plan computes nothing: it goes to each host, in
the order of the fields of Plan, and undoes in the opposite order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

#: scheduler, server: BytePS's. aggregator: thc-ps. switch: a P4 program in software, with its agent. agent: of a switch
#: that runs elsewhere. worker: one bpslaunch or torchrun.
Role = Literal["scheduler", "server", "aggregator", "switch", "agent", "worker"]

#: How hosts are reached. namespaces: each is a network namespace of this host, made for the testbed.
Reach = Literal["namespaces", "ssh"]


@dataclass(frozen=True)
class PlannedHost:
    """A host. With Reach "namespaces", a namespace to be made; `ssh` is where to log in otherwise."""

    name: str
    #: USER@HOST or HOST; None in namespaces
    ssh: str | None
    #: IP address for what is not gradients: BytePS's TCP, rendezvous; None: it needs none
    management_ip: str | None = None
    #: the Python there that has byteps_thc: a path, or a command on PATH
    python: str = "python3"


@dataclass(frozen=True)
class CableEnd:
    """One end of a veth pair."""

    host: str
    interface: str
    mac: str
    #: with prefix length, such as 10.0.0.1/24; empty: none, because DPDK or a switch answers for it
    address: str = ""


@dataclass(frozen=True)
class Cable:
    """A veth pair between two namespaces, both ends up. Only in namespaces."""

    a: CableEnd
    b: CableEnd
    #: leave checksums and segmentation to the interfaces; False where DPDK or a switch in software gets the frames
    offloads: bool = False
    mtu_bytes: int = 1500


@dataclass(frozen=True)
class PlannedFile:
    """A file (or, without text, a folder) that has to be there before set-up; removed in the end. No secrets."""

    host: str
    path: str
    #: None: a folder
    text: str | None = None
    mode: int = 0o600


@dataclass(frozen=True)
class SetupStep:
    """A change of a host that a run needs, by argv without a shell. It needs root, but `done` must not."""

    #: in words, for `plan` and for errors
    what: str
    do: tuple[str, ...]
    #: exit code 0: it is so already, and is then not undone either; empty: do it always
    done: tuple[str, ...] = ()
    #: empty: nothing to undo
    undo: tuple[str, ...] = ()


@dataclass(frozen=True)
class HostSetup:
    """Steps on a host, in order; undone in the opposite order."""

    host: str
    steps: tuple[SetupStep, ...]


@dataclass(frozen=True)
class PlannedProcess:
    """A process of the run."""

    name: str
    host: str
    role: Role
    #: without a shell and without what reaches the host (nsenter, ssh)
    argv: tuple[str, ...]
    #: beside what the host's login has; PATH and the like are not here. Key files by path, no secrets
    environment: Mapping[str, str] = field(default_factory=dict)
    #: names of further variables, which whoever starts the process has the values of: they may be secrets
    private: tuple[str, ...] = ()
    #: folder it runs in; None: any
    folder: str | None = None
    #: regular expression that a line of its output has when others may start (re.search); None: at once
    ready: str | None = None
    ready_timeout_s: float = 120.0
    #: names of processes that have to be ready before
    after: tuple[str, ...] = ()
    #: whether the run is over when it ends. Workers: with exit code 0 they are done, and with the last of them the run
    #: is; others: not before the workers are done. False: it may end when it likes
    essential: bool = True
    #: "udp:IP:PORT" or "tcp:IP:PORT" that the kernel is to bind for it on its host, for `check`
    listens: tuple[str, ...] = ()


@dataclass(frozen=True)
class ResultsFile:
    """What the training writes in the end: JSON of results.py. Its path is $THC_TESTBED_RESULTS of worker 0."""

    host: str
    path: str


@dataclass(frozen=True)
class Plan:
    """All of a run, in the order in which it is done: hosts, cables, files, set-ups, processes."""

    name: str
    reach: Reach
    hosts: tuple[PlannedHost, ...]
    cables: tuple[Cable, ...]
    files: tuple[PlannedFile, ...]
    setups: tuple[HostSetup, ...]
    processes: tuple[PlannedProcess, ...]
    #: settings of the job with nothing "auto" left, for people
    resolved: Mapping[str, str]
    #: (who, what kind of address, the address), for people
    addresses: tuple[tuple[str, str, str], ...]
    #: None: the training writes none
    results: ResultsFile | None = None

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of the workers' processes; the run is done when all of them have ended with exit code 0."""
        return tuple(process.name for process in self.processes if process.role == "worker")

    def process(self, name: str) -> PlannedProcess:
        """Return the process of that name."""
        return next(process for process in self.processes if process.name == name)
