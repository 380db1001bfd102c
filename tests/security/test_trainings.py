"""Two trainings with one job number: the second is refused by name, and nobody averages the other's gradients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from e2e.udp_switch import HOST, SERVER, free_udp_ports, job_of, udp_switch
from rack_servers import RackServers
from ranks import run_ranks

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._scheme.config import ThcConfig

#: Joins, pushes codes that are all 1 for training "A" and 2 for "B" when it is told to go, and says what came of it.
WORKER = """
    import json, sys
    import numpy as np
    from byteps_thc._scheme.config import ThcConfig
    from byteps_thc._scheme.errors import ThcError
    from byteps_thc._net.session import Session, Timeouts, UdpConfig
    settings = json.loads(sys.argv[1])
    def say(**words):
        print(json.dumps(words), flush=True)
    try:
        with Session(
            [settings["server"]], job=settings["job"], worker=settings["worker"], workers=2, config=ThcConfig(),
            backend=UdpConfig(settings["local"]), run=settings["run"],
            timeouts=Timeouts(connect_s=20, operation_s=20),
        ) as session:
            say(joined=True)
            sys.stdin.readline()
            aggregate, contributions = session.new_aggregate(1024), np.zeros(1, np.uint8)
            codes = np.full(512, settings["code"] * 0x11, np.uint8)
            session.wait(session.push_codes(0, codes, aggregate, contributions))
            say(sums=sorted({int(value) for value in aggregate}))
    except ThcError as error:
        say(error=type(error).__name__, message=str(error))
"""


RUN_VARIABLES = {"THC_RUN", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "DMLC_PS_ROOT_URI"}


class Member:
    """A worker of a training, in a process of its own."""

    def __init__(
        self,
        server: str,
        training: str,
        worker: int,
        job: int,
        run: str | None,
        local: str,
        launcher: Mapping[str, str],
    ) -> None:
        settings = {"server": server, "worker": worker, "job": job, "run": run, "local": local}
        settings["code"] = {"A": 1, "B": 2}[training]
        command = [sys.executable, "-P", "-c", textwrap.dedent(WORKER), json.dumps(settings)]
        environment = {name: value for name, value in os.environ.items() if name not in RUN_VARIABLES} | {**launcher}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def hear(self) -> dict[str, Any]:
        """The next that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"ended": self.process.wait(30)}

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait(30)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


Start = Callable[..., Member]


@pytest.fixture
def members() -> Iterator[Start]:
    with ExitStack() as stack:

        def start(
            server: str,
            training: str,
            worker: int,
            *,
            job: int = 1,
            run: str | None = "",
            local: str = "127.0.0.1:0",
            launcher: Mapping[str, str] = MappingProxyType({}),
        ) -> Member:
            """run: "": the training's name. launcher: variables that it sets."""
            member = Member(server, training, worker, job, training if run == "" else run, local, launcher)
            stack.callback(member.end)
            return member

        yield start


def train(pair: Sequence[Member], sums: int) -> None:
    """Both push; each gets the sum of what this training pushed."""
    for member in pair:
        member.go()
    assert [member.hear() for member in pair] == [{"sums": [sums]}] * 2


def sum_of(code: int) -> int:
    return 2 * int(ThcConfig().resolve(workers=2).table.values[code])


def assert_refused(member: Member) -> None:
    said = member.hear()
    assert said.get("error") == "ServerRefusedError", said
    for words in ("another training", "job 1", "job=", "THC_JOB", "wait until it ends"):
        assert words in said["message"]


@contextmanager
def servers_of(kind: str) -> Iterator[list[str]]:
    """Where workers 0 and 1 of any job send."""
    if kind == "racks":
        with RackServers([1, 1]) as racks:
            yield [racks.address_of(worker) for worker in range(2)]
    else:
        with ParameterServer(["--threads", "2" if kind == "two threads" else "1"]) as server:
            yield [server.address] * 2


SLOW = pytest.mark.slow


@pytest.mark.parametrize("kind", ["one thread", pytest.param("two threads", marks=SLOW), "racks"])
def test_trainings_with_one_job_number_do_not_pair(members: Start, kind: str) -> None:
    """A0 and B1 come first, who would have been each other's; then B0."""
    with servers_of(kind) as servers:
        first = members(servers[0], "A", 0)
        assert first.hear() == {"joined": True}
        for stranger in [members(servers[worker], "B", worker) for worker in (1, 0)]:
            assert_refused(stranger)
        pair = [first, members(servers[1], "A", 1)]
        others = [members(servers[worker], "B", worker, job=2) for worker in range(2)]
        assert [member.hear() for member in (pair[1], *others)] == [{"joined": True}] * 3
        train(pair, sum_of(1))
        train(others, sum_of(2))


def test_launchers_tell_trainings_apart_and_a_restarted_worker_joins(members: Start, thc_ps: ParameterServer) -> None:
    """Nobody says a run: one training was started by torchrun, the other by srun."""
    torchrun, srun = {"TORCHELASTIC_RUN_ID": "a1"}, {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    pair = [members(thc_ps.address, "A", worker, run=None, launcher=torchrun) for worker in range(2)]
    assert [member.hear() for member in pair] == [{"joined": True}] * 2
    pair[0].process.kill()
    assert_refused(members(thc_ps.address, "B", 0, run=None, launcher=srun))
    pair[0] = members(thc_ps.address, "A", 0, run=None, launcher=torchrun)
    assert pair[0].hear() == {"joined": True}


@pytest.mark.parametrize("program", ["v1model", pytest.param("tna", marks=SLOW)])
def test_trainings_do_not_pair_on_a_switch(members: Start, program: str) -> None:
    """Workers' addresses are in its description, so B1 has A1's, and B the other job's later."""
    ports = free_udp_ports(4)
    local = [f"{HOST}:{port}" for port in ports]
    jobs = [job_of(1, ports[:2], ThcConfig()), job_of(2, ports[2:], ThcConfig())]
    with udp_switch(program, *jobs):
        first = members(SERVER, "A", 0, local=local[0])
        assert first.hear() == {"joined": True}
        assert_refused(members(SERVER, "B", 1, local=local[1]))
        pair = [first, members(SERVER, "A", 1, local=local[1])]
        others = [members(SERVER, "B", worker, job=2, local=local[2 + worker]) for worker in range(2)]
        assert [member.hear() for member in (pair[1], *others)] == [{"joined": True}] * 3
        train(pair, sum_of(1))
        train(others, sum_of(2))


@SLOW
def test_ranks_of_a_process_group_have_a_run_of_their_own(
    members: Start, thc_ps: ParameterServer, tmp_path: Path
) -> None:
    """Nobody says a run. A worker of another training is there first: rank 0 would have been its other one."""
    program, settings = Path(__file__).with_name("training_rank.py"), {"servers": [thc_ps.address], "told": [{}, {}]}
    stranger = members(thc_ps.address, "B", 1, run=None)
    assert stranger.hear() == {"joined": True}
    for result in run_ranks(program, 2, tmp_path / "refused", settings=settings):
        assert "another training uses this job number" in result["error"]
    stranger.end()
    for result in run_ranks(program, 2, tmp_path / "alone", settings=settings):
        assert abs(result["average"] - 1.5) < 0.1


def test_ranks_that_say_different_runs_are_told_so(thc_ps: ParameterServer, tmp_path: Path) -> None:
    settings = {"servers": [thc_ps.address], "told": [{"run": "mine"}, {"run": 7}]}
    for result in run_ranks(Path(__file__).with_name("training_rank.py"), 2, tmp_path, settings=settings):
        assert "run is 'mine' on rank 0, '7' on rank 1" in result["error"]
