"""The plan of a run: cables, files, processes. Addresses are literal, and so are paths outside the run folder."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from thc_lab.namespaces import Cable

#: scheduler, server: BytePS's. aggregator: thc-ps. switch: a P4 program in software, with its agent. agent: of a switch
#: that runs elsewhere. worker: one bpslaunch or torchrun.
Role = Literal["scheduler", "server", "aggregator", "switch", "agent", "worker"]

#: File of the switch's job description, in a plan that has one.
JOB_DESCRIPTION = "jobs.json"

#: namespaces: each host is a network namespace made for the testbed. hosts: people start the processes.
Reach = Literal["namespaces", "hosts"]


@dataclass(frozen=True)
class PlannedHost:
    """A host; with Reach "namespaces", a namespace to be made."""

    name: str
    #: IP address for all but gradients: BytePS's TCP, rendezvous; None: not needed
    management_ip: str | None = None
    #: the Python there that has byteps_thc: a path, or a command on PATH
    python: str = "python3"


@dataclass(frozen=True)
class PlannedFile:
    """A file (or, without text, a folder) in the run folder. No secrets."""

    host: str
    path: str
    #: None: a folder
    text: str | None = None


@dataclass(frozen=True)
class PlannedProcess:
    """A process of the run."""

    name: str
    host: str
    role: Role
    #: without a shell and without the words that enter the host (nsenter)
    argv: tuple[str, ...]
    #: beside the host's own; PATH and the like are not here. Key files by path, no secrets
    environment: Mapping[str, str] = field(default_factory=dict)
    #: names of further variables, whose values the starter of the process has: they may be secrets
    private: tuple[str, ...] = ()
    #: folder it runs in; None: any
    folder: str | None = None
    #: regular expression that a line of its output has when others may start (re.search); None: at once
    ready: str | None = None
    ready_timeout_s: float = 120.0
    #: names of processes that have to be ready before
    after: tuple[str, ...] = ()
    #: "udp:IP:PORT" or "tcp:IP:PORT" that the kernel is to bind for it on its host, for `check`
    listens: tuple[str, ...] = ()


@dataclass(frozen=True)
class ResultsFile:
    """Results of the training: JSON of results.py. Worker 0 finds the path in $THC_TESTBED_RESULTS."""

    host: str
    path: str


@dataclass(frozen=True)
class Plan:
    """All of a run, in the order in which it is done: hosts, cables, files, processes."""

    name: str
    reach: Reach
    hosts: tuple[PlannedHost, ...]
    cables: tuple[Cable, ...]
    #: namespaces that bridge the cables whose second ends are in them
    bridges: tuple[str, ...]
    files: tuple[PlannedFile, ...]
    processes: tuple[PlannedProcess, ...]
    #: settings of the job with nothing "auto" left, for people
    resolved: Mapping[str, str]
    #: (owner, kind of address, address), for readers
    addresses: tuple[tuple[str, str, str], ...]
    #: None: the training writes none
    results: ResultsFile | None = None

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of the workers' processes; the run is done when all have ended with exit code 0."""
        return tuple(process.name for process in self.processes if process.role == "worker")

    def process(self, name: str) -> PlannedProcess:
        """Return the process of that name."""
        return next(process for process in self.processes if process.name == name)
