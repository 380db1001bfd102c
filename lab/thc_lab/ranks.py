"""Ranks: processes of a program that share a torch.distributed process group on loopback.

The caller starts them, and receives their reports:

    results = run_ranks(Path(__file__).with_name("averaging_rank.py"), 4, tmp_path, settings={"steps": 3})

The ranks are forked (fork_server.py). The program (a standalone file) joins, works, reports:

    with joined_rank() as rank:              # torch.distributed is initialised with gloo
        rank.report({"sum": tensor})         # tensors and plain values
"""

import faulthandler
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from thc_lab.fork_server import ForkedProcess, start_program

SETTINGS_VARIABLE = "THC_TEST_RANK"


class Ranks:
    """Running ranks; a context manager, whose end kills them.

    program: the file every rank runs. directory: where the rendezvous, logs and results go; a new one for every group
    of ranks. settings: plain values for the program. environment: on top of this process's. before_import: see
    start_program.
    """

    def __init__(
        self,
        program: Path,
        ranks: int,
        directory: Path,
        *,
        settings: Mapping[str, Any] | None = None,
        timeout_s: float = 180.0,
        environment: Mapping[str, str] | None = None,
        before_import: Mapping[str, str] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.deadline = time.monotonic() + timeout_s
        self.processes: list[ForkedProcess] = []
        for rank in range(ranks):
            launch = {"rank": rank, "ranks": ranks, "directory": str(directory), "timeout_s": timeout_s}
            variables = os.environ | {
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                SETTINGS_VARIABLE: json.dumps(launch | {"settings": dict(settings or {})}),
            }
            log = directory / f"rank{rank}.log"
            variables |= environment or {}
            self.processes.append(start_program(program, environment=variables, log=log, before_import=before_import))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def log(self, rank: int) -> str:
        """Return a rank's output."""
        return (self.directory / f"rank{rank}.log").read_text(errors="replace")

    def kill(self, rank: int) -> None:
        """End the rank without letting it say goodbye."""
        self.processes[rank].send_signal(signal.SIGKILL)

    def wait(self, *, killed: tuple[int, ...] = ()) -> list[Any]:
        """Return every rank's report, None for those in `killed`.

        Raises AssertionError with the log when another rank fails, when one in `killed` does not die of SIGKILL, or
        when the time is over.
        """
        for rank, process in enumerate(self.processes):
            try:
                code = process.wait(max(0.0, self.deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"rank {rank} did not end in time:\n{self._logs()}") from None
            wanted = -signal.SIGKILL if rank in killed else 0
            assert code == wanted, f"rank {rank} ended with {code} instead of {wanted}:\n{self._logs()}"
        return [None if rank in killed else result_of(self.directory, rank) for rank in range(len(self.processes))]

    def _logs(self) -> str:
        return "\n".join(f"--- rank {rank}\n{self.log(rank)}" for rank in range(len(self.processes)))


def run_ranks(program: Path, ranks: int, directory: Path, **options: Any) -> list[Any]:
    """Run a program on that many ranks and return their reports; options as for Ranks."""
    with Ranks(program, ranks, directory, **options) as running:
        return running.wait()


@dataclass(frozen=True)
class Rank:
    """This process's rank, and its settings."""

    rank: int
    ranks: int
    settings: dict[str, Any]
    directory: Path
    """common to all ranks"""

    def report(self, result: Any) -> None:
        """Hand a result (tensors and plain values) to the caller; once."""
        import torch

        torch.save(result, _result_file(self.directory, self.rank))


@contextmanager
def joined_rank(*, timeout_s: float = 60.0) -> Iterator[Rank]:
    """Join the default process group (gloo, one thread per rank); timeout_s: of its operations.

    Leaves without a farewell to the other ranks when the block raises. A rank that hangs prints its stacks before its
    time is over.
    """
    import torch
    import torch.distributed as dist
    import torch.distributed.nn.functional  # before a group exists, which it would hold (_net/communicator.py)

    from byteps_thc._base.torch_private import FileStore

    launch = json.loads(os.environ[SETTINGS_VARIABLE])
    faulthandler.dump_traceback_later(max(1.0, launch["timeout_s"] - 5.0))
    torch.set_num_threads(1)
    rank = Rank(launch["rank"], launch["ranks"], launch["settings"], Path(launch["directory"]))
    store = FileStore(str(rank.directory / "rendezvous"), rank.ranks)
    dist.init_process_group(
        "gloo", store=store, rank=rank.rank, world_size=rank.ranks, timeout=timedelta(seconds=timeout_s)
    )
    yield rank
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()


def default_group() -> Any:
    """Return the default process group."""
    import torch.distributed as dist

    assert dist.group.WORLD is not None
    return dist.group.WORLD


def result_of(directory: Path, rank: int) -> Any:
    """Return the report of a rank."""
    import torch

    return torch.load(_result_file(directory, rank), weights_only=True)


def _result_file(directory: Path, rank: int) -> Path:
    return directory / f"rank{rank}.result"
