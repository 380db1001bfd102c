"""Starts and ends the processes of a job; see the package."""

import importlib.util
import os
import random
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from byteps_lab.processes import JobProcess

_BIN = Path(sys.executable).parent
_LOOPBACK = "127.0.0.1"

#: Below the range from which Linux gives ports to programs that do not ask for a certain one.
_PORTS = range(20000, 32000)

_POLL_S = 0.05

#: Prefixes of variables of BytePS and ps-lite: a job takes none over from the environment of the tests.
_OURS = ("DMLC_", "BYTEPS_", "PS_")


def why_not() -> str | None:
    """Say why no BytePS job can be run here; None when one can."""
    if importlib.util.find_spec("byteps") is None:
        return "BytePS is not installed for this Python: run make byteps"
    if not (_BIN / "bpslaunch").exists():
        return f"bpslaunch is not beside {sys.executable}"
    return None


@dataclass(frozen=True)
class Finished:
    """A worker that has ended: its exit status, and its output."""

    status: int
    output: str


class BytepsLab:
    """A job of BytePS on loopback; use as a context manager, which starts scheduler and servers.

    folder: for outputs and sockets, of this job alone. environment: further variables for all processes.
    """

    def __init__(
        self, folder: Path, *, workers: int = 2, servers: int = 1, environment: Mapping[str, str] | None = None
    ) -> None:
        self.workers = workers
        self.port = _free_port()
        self._folder, self._servers = folder, servers
        self._environment = self._job_environment() | dict(environment or {})
        self._processes: dict[str, JobProcess] = {}

    def __enter__(self) -> Self:
        try:
            self.start_servers()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start_servers(self) -> None:
        """Start scheduler and servers: again, after all workers have suspended BytePS and wait_servers()."""
        self._launch("scheduler", "scheduler")
        for server in range(self._servers):
            self._launch(f"server{server}", "server")

    def start(self, program: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        """Start all workers: Python runs `program` with the arguments, the same for all."""
        for worker in range(self.workers):
            self.start_worker(worker, program, *arguments, environment=environment)

    def start_worker(
        self, worker: int, program: Path, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start one worker; `environment` is for this worker only."""
        sockets = self._folder / f"sockets{worker}"
        sockets.mkdir(exist_ok=True)
        own = {"DMLC_WORKER_ID": str(worker), "BYTEPS_SOCKET_PATH": str(sockets)} | dict(environment or {})
        command = [sys.executable, "-P", str(program), *arguments]
        self._launch(f"worker{worker}", "worker", *[shlex.quote(word) for word in command], environment=own)

    def wait(self, deadline_s: float = 60.0) -> list[Finished]:
        """Wait for all workers, in order of their ids; TimeoutError with everyone's output when one does not end."""
        end = time.monotonic() + deadline_s
        return [self.wait_worker(worker, end - time.monotonic()) for worker in range(self.workers)]

    def wait_worker(self, worker: int, deadline_s: float = 60.0) -> Finished:
        """Wait for one worker; TimeoutError as for wait, RuntimeError if a server or the scheduler fails meanwhile."""
        process = self._processes[f"worker{worker}"]
        end = time.monotonic() + deadline_s
        while (status := process.status) is None:
            failed = [name for name, other in self._processes.items() if not name.startswith("worker") and other.failed]
            if failed:
                raise RuntimeError(f"{', '.join(failed)} failed\n{self.outputs()}")
            if time.monotonic() > end:
                raise TimeoutError(f"{process.name} did not end within its deadline\n{self.outputs()}")
            time.sleep(_POLL_S)
        return Finished(status, process.output)

    def wait_servers(self, deadline_s: float = 60.0) -> None:
        """Wait until scheduler and servers have ended, as they do after the last worker; else TimeoutError."""
        end = time.monotonic() + deadline_s
        for name in ("scheduler", *(f"server{server}" for server in range(self._servers))):
            try:
                self._processes[name].wait(end - time.monotonic())
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"{name} did not end\n{self.outputs()}") from None

    def output(self, name: str) -> str:
        """The output of "scheduler", "serverN" or "workerN" so far."""
        return self._processes[name].output

    def wait_for_output(self, name: str, text: str, deadline_s: float = 90.0) -> None:
        """Wait until that process has printed `text`; TimeoutError with everyone's output when it does not."""
        end = time.monotonic() + deadline_s
        while text not in self.output(name):
            if time.monotonic() > end:
                raise TimeoutError(f"{name} did not print {text!r}\n{self.outputs()}")
            time.sleep(_POLL_S)

    def outputs(self) -> str:
        return "\n".join(f"--- {name}\n{process.output}" for name, process in self._processes.items())

    def kill(self, name: str) -> None:
        """End a process and its children, as a crash would."""
        self._processes[name].kill()

    def close(self) -> None:
        """End all processes, and remove the shared memory of killed ones."""
        for process in self._processes.values():
            process.kill()
        for segment in Path("/dev/shm").glob(f"BytePS_*_{self.port}_*"):
            segment.unlink(missing_ok=True)

    def _launch(self, name: str, role: str, *command: str, environment: Mapping[str, str] | None = None) -> None:
        variables = self._environment | {"DMLC_ROLE": role, "DMLC_NODE_HOST": _LOOPBACK} | dict(environment or {})
        launch = [str(_BIN / "bpslaunch"), *command]
        self._processes[name] = JobProcess(name, launch, variables, self._folder / f"{name}.log")

    def _job_environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith(_OURS)} | {
            "PATH": f"{_BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",  # bpslaunch starts "python3"
            "PYTHONPATH": str(Path(__file__).parents[1]),  # for the programs of the workers: tests/lib
            "DMLC_NUM_WORKER": str(self.workers),
            "DMLC_NUM_SERVER": str(self._servers),
            "DMLC_PS_ROOT_URI": _LOOPBACK,
            "DMLC_PS_ROOT_PORT": str(self.port),
            "BYTEPS_PCIE_SWITCH_SIZE": "1",
            "NVIDIA_VISIBLE_DEVICES": "0",  # bpslaunch starts one process per entry
            "BYTEPS_POLL_NS": "200000",  # the threads of two workers would keep two cores busy with polling
            "BYTEPS_SERVER_ENGINE_THREAD": "2",
            "BYTEPS_OMP_THREAD_PER_GPU": "1",
            "OMP_NUM_THREADS": "1",
        }


def _free_port() -> int:
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind((_LOOPBACK, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port in {_PORTS.start} .. {_PORTS.stop - 1}")
