"""Workers: processes that push to a switch, or to thc-ps, and report."""

import functools
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from byteps_thc._cli.launch import ParameterServer
from thc_lab.demo_switch.site import Site
from thc_lab.namespaces import command_inside

PROGRAM = Path(__file__).with_name("worker_process.py")
JOB = 7
#: longer than an operation takes to fail
EVENT_TIMEOUT_S = 90.0
EAL = ["--no-huge", "-m", "128", "--no-pci", "--no-telemetry"]


@dataclass(frozen=True)
class Work:
    """counts: codes of each partition. backends: one per worker. pauses: step after which a worker waits."""

    backends: tuple[str, ...]
    counts: tuple[int, ...] = (5 * 1024 + 300, 1024, 3)
    steps: int = 1
    faults: dict[str, float] = field(default_factory=dict)
    operation_s: float = 60.0
    pauses: dict[int, int] = field(default_factory=dict)

    def settings(self, worker: int, server: str, backend: dict[str, Any]) -> dict[str, Any]:
        return {
            "server": server,
            "job": JOB,
            "worker": worker,
            "workers": len(self.backends),
            "thc": {"codes_per_packet": 1024},  # as a switch has them: digests have contributions, a chunk each
            "counts": self.counts,
            "steps": self.steps,
            "pause_after": self.pauses.get(worker),
            "backend": backend,
            "faults": self.faults,
            "timeouts": {"connect_s": 30.0, "operation_s": self.operation_s},
        }


class Workers:
    """Worker processes, one for each settings; leaving the context kills running ones."""

    def __init__(self, settings: Sequence[dict[str, Any]], namespaces: Sequence[str] = ()) -> None:
        self._stack = ExitStack()
        self.processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Connection] = []
        for worker, own in enumerate(settings):
            ours, theirs = multiprocessing.Pipe()
            command = command_inside(namespaces[worker]) if namespaces else []
            command += [sys.executable, "-P", str(PROGRAM), json.dumps(own), str(theirs.fileno())]
            variables = os.environ | {"PYTHONPATH": str(PROGRAM.parents[1])}  # for packet_faults
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=variables)
            theirs.close()
            self._stack.callback(ours.close)
            self._stack.callback(process.wait, 10)
            self._stack.callback(process.kill)
            self.processes.append(process)
            self._pipes.append(ours)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def event(self, worker: int, timeout_s: float = EVENT_TIMEOUT_S) -> dict[str, Any]:
        if not self._pipes[worker].poll(timeout_s):
            pytest.fail(f"worker {worker} said nothing for {timeout_s} s")
        event: dict[str, Any] = self._pipes[worker].recv()
        return event

    def resume(self, worker: int) -> None:
        self._pipes[worker].send("resume")

    def outcome(self, worker: int) -> dict[str, Any]:
        """The last thing it says: a digest or an error."""
        while "step" in (event := self.event(worker)):
            pass
        return event

    def outcomes(self) -> list[dict[str, Any]]:
        """Return the last messages of all; then they leave."""
        outcomes = [self.outcome(worker) for worker in range(len(self.processes))]
        for outcome, pipe, process in zip(outcomes, self._pipes, self.processes, strict=True):
            if "error" not in outcome:  # who has one leaves by itself, and closes its pipe
                pipe.send("leave")
            process.wait(20)
        return outcomes


def backend_at(site: Site, worker: int, kind: str) -> dict[str, Any]:
    """Packet I/O of a worker in its namespace."""
    if kind == "udp":
        return {"udp": {"local": site.worker_local(worker)}}
    device = f"--vdev=net_af_packet0,iface={site.worker_interface}"
    prefix = f"--file-prefix={site.workers[worker]}"
    return {"dpdk": {"local": site.worker_local(worker), "eal_args": [*EAL, prefix, device]}}


def start_workers(site: Site, work: Work) -> Workers:
    """Start the workers at a switch, each in its namespace."""
    backends = [backend_at(site, worker, kind) for worker, kind in enumerate(work.backends)]
    return Workers([work.settings(w, site.server, backend) for w, backend in enumerate(backends)], site.workers)


@functools.cache
def digest_of_thc_ps(workers: int, counts: tuple[int, ...], steps: int) -> str:
    """Return the digest of every worker's results over thc-ps for the same work."""
    work = Work(("udp",) * workers, counts, steps)
    with ParameterServer() as server:
        settings = [work.settings(w, server.address, {"udp": {"local": "127.0.0.1"}}) for w in range(workers)]
        with Workers(settings) as running:
            digests = {str(outcome["digest"]) for outcome in running.outcomes()}
    (digest,) = digests
    return digest
