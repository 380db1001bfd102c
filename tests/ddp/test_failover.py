"""DDP, HSDP and ThcReducer with several thc-ps that end and restart: no step is lost, averages stay the same."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from restarted_servers import RestartedServers

from thc_lab.ranks import Ranks, run_ranks

PROGRAM = Path(__file__).with_name("failover_rank.py")
PATIENCE_S = 120.0  # of a busy machine


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


class Training:
    def __init__(
        self, ranks: int, servers: list[str], directory: Path, stack: ExitStack, *, front: str = "ddp"
    ) -> None:
        self._directory = directory
        settings = {"front": front, "servers": servers, "steps": None}
        self._ranks = stack.enter_context(Ranks(PROGRAM, ranks, directory, settings=settings, timeout_s=400.0))

    def wait_for(self, *, steps: int = 0, moves: int = 0) -> None:
        """Wait for so many steps more, and for so many moves."""
        goal, deadline = self._progress()[0] + steps, time.monotonic() + PATIENCE_S
        while self._progress() < (goal, moves) or self._progress()[1] < moves:
            if time.monotonic() > deadline:
                self.stop()  # says why, if a rank has failed
                raise AssertionError(f"{self._progress()} instead of {goal, moves}")
            time.sleep(0.02)

    def stop(self) -> list[list[str]]:
        """Digests of the steps of each rank."""
        (self._directory / "stop").touch()
        return [report["digests"] for report in self._ranks.wait()]

    def _progress(self) -> tuple[int, int]:
        try:
            steps, moves = (self._directory / "progress").read_text().split()
        except FileNotFoundError:
            return 0, 0
        return int(steps), int(moves)


def of_a_quiet_run(ranks: int, steps: int, directory: Path, stack: ExitStack, *, front: str = "ddp") -> list[list[str]]:
    settings = {"front": front, "servers": RestartedServers(1, stack).addresses, "steps": steps}
    return [report["digests"] for report in run_ranks(PROGRAM, ranks, directory, settings=settings, timeout_s=400.0)]


@pytest.mark.slow
@pytest.mark.parametrize(("front", "count", "ranks"), [("ddp", 2, 2), ("ddp", 3, 3), ("reducer", 2, 2), ("hsdp", 2, 4)])
def test_a_killed_server_costs_no_step(front: str, count: int, ranks: int, tmp_path: Path, stack: ExitStack) -> None:
    servers = RestartedServers(count, stack)
    training = Training(ranks, servers.addresses, tmp_path / "failing", stack, front=front)
    training.wait_for(steps=10)
    servers.kill(count - 1)
    training.wait_for(steps=10, moves=1)
    servers.restart(count - 1)
    training.wait_for(steps=10, moves=2)
    digests = training.stop()
    assert digests == of_a_quiet_run(ranks, len(digests[0]), tmp_path / "quiet", stack, front=front)
    if front != "hsdp":
        assert all(each == digests[0] for each in digests)
