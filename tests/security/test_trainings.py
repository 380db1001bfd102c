"""Two trainings with one job number: the second is refused by name, and none averages gradients of the other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from e2e.udp_switch import HOST, SERVER, free_udp_ports, job_of, udp_switch
from error_of import error_of
from pushed_codes import push_codes

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import Session, Timeouts, UdpConfig
from byteps_thc._scheme.adding.server_codes import ServerCodes
from thc_lab.rack_servers import RackServers
from thc_lab.ranks import run_ranks

PROGRAM = Path(__file__).with_name("training_rank.py")
SLOW = pytest.mark.slow

Join = Callable[..., Session]


@pytest.fixture
def join() -> Iterator[Join]:
    """Join worker `worker` of two, of a training with the name `run`; all leave in the end."""
    with ExitStack() as stack:

        def enter(server: str, run: str | None, worker: int, *, job: int = 1, local: str = "127.0.0.1:0") -> Session:
            session = Session(
                [server],
                job=job,
                worker=worker,
                workers=2,
                codes=ServerCodes(),
                backend=UdpConfig(local),
                run=run,
                timeouts=Timeouts(connect_s=20, operation_s=20),
            )
            return stack.enter_context(session)

        yield enter


def train(pair: Sequence[Session], code: int) -> None:
    """Let both workers push equal codes; each gets the sum of the training's own."""
    pushed = [push_codes(session, 0, np.full(512, code * 0x11, np.uint8)) for session in pair]
    for each in pushed:
        assert set(each.wait().aggregate) == {2 * ServerCodes().resolve(workers=2).table.values[code]}


def assert_refused(join: Join, *arguments: object, **options: object) -> None:
    error = error_of(lambda: join(*arguments, **options))
    for words in ("ServerRefusedError: ", "another training", "job 1", "job=", "THC_JOB", "wait until it ends"):
        assert words in error


@contextmanager
def servers_of(kind: str) -> Iterator[list[str]]:
    """Yield the servers of workers 0 and 1 of any job."""
    if kind == "racks":
        with RackServers([1, 1]) as racks:
            yield [racks.address_of(worker) for worker in range(2)]
    else:
        with ParameterServer(["--threads", "2" if kind == "two threads" else "1"]) as server:
            yield [server.address] * 2


@pytest.mark.parametrize("kind", ["one thread", pytest.param("two threads", marks=SLOW), "racks"])
def test_trainings_with_one_job_number_do_not_pair(join: Join, kind: str) -> None:
    """A0 and B1 come first, who would have been each other's; then B0."""
    with servers_of(kind) as servers:
        first = join(servers[0], "A", 0)
        for worker in (1, 0):
            assert_refused(join, servers[worker], "B", worker)
        pair = [first, join(servers[1], "A", 1)]
        others = [join(servers[worker], "B", worker, job=2) for worker in range(2)]
        train(pair, 1)
        train(others, 2)


@pytest.mark.parametrize("program", ["v1model", pytest.param("tna", marks=SLOW)])
def test_trainings_do_not_pair_on_a_switch(join: Join, program: str) -> None:
    """A switch knows workers by their addresses: B1 has the address of A1, and B the addresses of job 2 later."""
    ports = free_udp_ports(4)
    local = [f"{HOST}:{port}" for port in ports]
    jobs = [job_of(1, ports[:2], ServerCodes()), job_of(2, ports[2:], ServerCodes())]
    with udp_switch(program, *jobs):
        first = join(SERVER, "A", 0, local=local[0])
        assert_refused(join, SERVER, "B", 1, local=local[1])
        pair = [first, join(SERVER, "A", 1, local=local[1])]
        others = [join(SERVER, "B", worker, job=2, local=local[2 + worker]) for worker in range(2)]
        train(pair, 1)
        train(others, 2)


@SLOW
def test_ranks_of_a_process_group_have_a_run_of_their_own(join: Join, tmp_path: Path) -> None:
    """A worker of another training without a run is first: rank 0 would have been its peer."""
    with ParameterServer(["--idle-timeout", "3600"]) as server:  # until ranks have started, however long they take
        settings = {"servers": [server.address], "told": [{}, {}]}
        stranger = join(server.address, None, 1)
        for result in run_ranks(PROGRAM, 2, tmp_path / "refused", settings=settings):
            assert "another training uses this job number" in result["error"]
        stranger.close()
        for result in run_ranks(PROGRAM, 2, tmp_path / "alone", settings=settings):
            assert abs(result["average"] - 1.5) < 0.1


def test_ranks_that_say_different_runs_are_told_so(thc_ps: ParameterServer, tmp_path: Path) -> None:
    settings = {"servers": [thc_ps.address], "told": [{"run": "mine"}, {"run": 7}]}
    for result in run_ranks(PROGRAM, 2, tmp_path, settings=settings):
        assert "run is 'mine' on rank 0, '7' on rank 1" in result["error"]
