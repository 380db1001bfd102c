"""Starts the parameter servers and the workers of the demo, follows them, and ends them in all cases."""

import contextlib
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from byteps_thc._base.errors import ThcError
from thc_lab.demo.network import Network
from thc_lab.demo.settings import DemoSettings, Failure, Progress, RunResult

#: Time for other workers to report, after one has failed: the first failure may be a consequence.
FAILURE_GRACE_S = 1.0
END_TIMEOUT_S = 5.0
#: For a finished worker: torch takes long to leave a process on a busy host.
EXIT_TIMEOUT_S = 60.0


class DemoError(ThcError):
    """A worker failed, ended without a result, or nothing happened for too long."""


#: Starts the aggregators, which the stack ends, and returns their addresses for workers. The folder is temporary.
StartNetwork = Callable[[DemoSettings, Path, contextlib.ExitStack], Network]


@contextlib.contextmanager
def started_network(settings: DemoSettings, start_network: StartNetwork) -> Iterator[Network]:
    """Run the aggregators while the context lasts."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="thc-demo-")))
        yield start_network(settings, folder, stack)


def train(settings: DemoSettings, network: Network, on_progress: Callable[[Progress], None]) -> list[RunResult]:
    """Train once per scheme with real worker processes; on_progress is called after every step."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="thc-demo-workers-")))
        workers, channels = start_workers(settings, network, folder / "rendezvous")
        stack.callback(end_workers, workers)
        return follow(workers, channels, settings, on_progress)


def start_workers(
    settings: DemoSettings, network: Network, rendezvous: Path
) -> tuple[list[BaseProcess], list[Connection]]:
    """Start the worker processes; returns them and the reading ends of their channels."""
    context = multiprocessing.get_context("spawn")
    workers: list[BaseProcess] = []
    channels: list[Connection] = []
    for index in range(settings.workers):
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(
            target=run_worker, args=(index, settings, network, rendezvous, writer), name=f"worker {index}", daemon=True
        )
        process.start()
        writer.close()  # only the worker holds it now, so the reader sees the end of a worker that dies
        workers.append(process)
        channels.append(reader)
    return workers, channels


def run_worker(worker: int, settings: DemoSettings, network: Network, rendezvous: Path, channel: Connection) -> None:
    """Entry point of a worker process."""
    from thc_lab.demo import worker as implementation  # imports torch, which this process does without

    implementation.run_worker(worker, settings, network, rendezvous, channel)


def follow(
    workers: list[BaseProcess],
    channels: list[Connection],
    settings: DemoSettings,
    on_progress: Callable[[Progress], None],
) -> list[RunResult]:
    """Read the channels until every worker has closed its own; DemoError on the first failure or a stall."""
    results: list[RunResult] = []
    failures: list[Failure] = []
    open_channels = dict(zip(channels, workers, strict=True))
    deadline = time.monotonic() + settings.stall_timeout_s
    while open_channels:
        ready = wait(list(open_channels), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        failed_before = bool(failures)
        for channel in ready:
            assert isinstance(channel, Connection)
            message = receive(channel, open_channels)
            if isinstance(message, Progress):
                on_progress(message)
            elif isinstance(message, RunResult):
                results.append(message)
            elif isinstance(message, Failure):
                failures.append(message)
        if not failed_before:
            deadline = time.monotonic() + (FAILURE_GRACE_S if failures else settings.stall_timeout_s)
    if failures:
        raise DemoError(describe(failures))
    if open_channels:
        raise DemoError(f"no worker has made a step for {settings.stall_timeout_s:g} s")
    return results


def receive(channel: Connection, open_channels: dict[Connection, BaseProcess]) -> Progress | RunResult | Failure | None:
    """Next message of a worker. At the end of a channel: closes it; a Failure if the worker died, else None.

    A worker that is killed while it sends ends its channel in the middle of a message: OSError.
    """
    try:
        message: Progress | RunResult | Failure = channel.recv()
        return message
    except (EOFError, OSError):
        worker = open_channels.pop(channel)
        channel.close()
        worker.join(EXIT_TIMEOUT_S)
        if worker.exitcode == 0:
            return None
        code = worker.exitcode
        reason = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        return Failure(worker.name, reason, details="")


def describe(failures: list[Failure]) -> str:
    """One line per worker, in the order of their failures: later ones are often the consequence of the first."""
    first: dict[str, str] = {}
    for failure in failures:  # a worker that reports its failure also ends with an exit code
        first.setdefault(failure.worker, failure.message)
    return "; ".join(f"{worker}: {message}" for worker, message in first.items())


def end_workers(workers: list[BaseProcess]) -> None:
    """Leave no child behind."""
    for worker in workers:
        if worker.is_alive():
            worker.terminate()
    for worker in workers:
        worker.join(END_TIMEOUT_S)
        if worker.is_alive():
            worker.kill()
            worker.join()
