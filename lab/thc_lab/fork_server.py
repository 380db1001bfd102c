"""Python programs that need no second to start: forked from a process that has imported torch and started no thread.

    process = start_program(Path("rank.py"), environment=os.environ | {"RANK": "0"}, log=tmp_path / "rank0.log")
    assert process.wait(60.0) == 0

A forked program has torch imported before its environment is set, and the same hashes of strings as all others. It ends
as any interpreter does, but objects that were imported before are not destroyed, and Triton's nanobind says so in the
log. A process has a server, which starts with the first program and ends all programs with the process.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

_LARGEST_REQUEST_BYTES = 1 << 17
#: Imports of programs, and of torch when it is used for the first time: nothing of this project, which a
#: program may find elsewhere.
_PRELOADED = (
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.nn.functional",
    "torch._dynamo",
    "pydantic.dataclasses",
)


class ForkedProcess:
    """A program that runs, or has run; like subprocess.Popen."""

    def __init__(self, status: socket.socket) -> None:
        message, descriptors, _, _ = socket.recv_fds(status, 64, 1)
        assert message, "the fork server has ended"
        self.pid = int(message)
        self.returncode: int | None = None
        self._status = status
        [self._process] = descriptors

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit status, minus the signal when one ended it; subprocess.TimeoutExpired when it runs on."""
        if self.returncode is None:
            self._status.settimeout(None if timeout_s is None else max(0.001, timeout_s))
            try:
                message = self._status.recv(64)
            except TimeoutError:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_s or 0.0) from None
            self.returncode = int(message or -signal.SIGKILL)  # without a word: the server has ended, and killed all
            self._status.close()
            os.close(self._process)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            try:
                signal.pidfd_send_signal(self._process, number)
            except ProcessLookupError:
                return

    def kill(self) -> None:
        """End the process without letting it say goodbye."""
        self.send_signal(signal.SIGKILL)


def start_program(
    program: Path,
    *arguments: str,
    environment: Mapping[str, str],
    log: Path,
    folder: Path | None = None,
    before_import: Mapping[str, str] | None = None,
) -> ForkedProcess:
    """Run a program in a process of its own.

    log: the file of its output. folder: the current one if None. before_import: variables that a library reads when
    it is imported; programs for which they are the same share a server.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = {
        "argv": [str(program), *arguments],
        "environment": {**environment, **(before_import or {})},
        "folder": str(folder or Path.cwd()),
    }
    with theirs, log.open("wb") as output:
        message = json.dumps(request).encode()
        assert len(message) <= _LARGEST_REQUEST_BYTES, "environment and arguments are too long"
        socket.send_fds(_server(*sorted((before_import or {}).items())), [message], [theirs.fileno(), output.fileno()])
    return ForkedProcess(ours)


@functools.cache
def _server(*before_import: tuple[str, str]) -> socket.socket:
    """Requests of this process's server that has these variables."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * _LARGEST_REQUEST_BYTES)
    variables = {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # programs import from the path of this process
        "OMP_NUM_THREADS": "1",  # libraries start threads when they are loaded: none is left after a fork
        "OPENBLAS_NUM_THREADS": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # CUDA, once asked whether a GPU exists, does not survive a fork
    }
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            env=os.environ | variables | dict(before_import),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )

    def end() -> None:
        ours.close()
        server.wait(10)

    atexit.register(end)
    return ours


class _Server:
    """Forks on requests. run() returns in the children only, with the arguments of their programs."""

    def __init__(self, requests: socket.socket) -> None:
        self.requests = requests
        self.running: dict[int, socket.socket] = {}
        self.wake_up, self.woken = socket.socketpair()
        self.wake_up.setblocking(False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_up.fileno(), warn_on_full_buffer=False)

    def run(self) -> list[str]:
        while True:
            ready, _, _ = select.select([self.requests, self.woken], [], [])
            if self.woken in ready:
                self.woken.recv(4096)
                self.reap()
            if self.requests in ready:
                message, descriptors, _, _ = socket.recv_fds(self.requests, _LARGEST_REQUEST_BYTES, 2)
                if not message:
                    self.end()
                request = json.loads(message)
                status, output = descriptors
                child = os.fork()
                if not child:
                    return self.become(request, [status, output])
                os.close(output)
                self.running[child] = socket.socket(fileno=status)
                process = os.pidfd_open(child)
                socket.send_fds(self.running[child], [str(child).encode()], [process])
                os.close(process)

    def reap(self) -> None:
        for child in list(self.running):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                with self.running.pop(child) as waiting:
                    try:
                        waiting.send(str(os.waitstatus_to_exitcode(status)).encode())
                    except BrokenPipeError:
                        continue  # nobody waits for it

    def end(self) -> None:
        for child in self.running:
            os.kill(child, signal.SIGKILL)
        os._exit(0)  # nothing is left to be cleaned up, which would take a second

    def become(self, request: dict[str, object], descriptors: Sequence[int]) -> list[str]:
        """Restore in the child the state of a new interpreter."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        status, output = descriptors
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.close(status)
        for other in (self.requests, self.wake_up, self.woken, *self.running.values()):
            other.close()
        environment, argv = request["environment"], request["argv"]
        assert isinstance(environment, dict)
        assert isinstance(argv, list)
        os.environ.clear()
        os.environ.update(environment)
        folders = [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]
        sys.path[:0] = [folder for folder in folders if folder not in sys.path]
        os.chdir(str(request["folder"]))
        random.seed()
        importlib.import_module("numpy").random.seed()
        return argv


def main(descriptor: int) -> None:
    """Serve; in the children, run the requested program as the main module."""
    for name in _PRELOADED:
        importlib.import_module(name)
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads: those of a library would be missing after a fork"
    gc.collect()
    gc.freeze()  # neither a collection in a child nor its end copies and frees all of it
    sys.argv = _Server(socket.socket(fileno=descriptor)).run()
    module = types.ModuleType("__main__")
    module.__dict__["__file__"] = sys.argv[0]
    sys.modules["__main__"] = module
    exec(compile(Path(sys.argv[0]).read_bytes(), sys.argv[0], "exec"), module.__dict__)


if __name__ == "__main__":
    main(int(sys.argv[1]))
