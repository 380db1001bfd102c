"""The control plane of a real simple_switch, where bmv2 and p4c are installed."""

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from free_ports import free_tcp_port

from byteps_thc._base.errors import TransportError
from thc_switch import Deployment, allocate, plan
from thc_switch.controls import JobCheck, SlotCheck
from thc_switch.programs import program_path
from thc_switch.software import BMV2_PROGRAMS, compile_for_bmv2
from thc_switch.status import read_status
from thc_switch.targets.bmv2 import Bmv2Control

MISSING = [name for name in BMV2_PROGRAMS if shutil.which(name) is None]
START_S = 30.0

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not on PATH: {', '.join(MISSING)}")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Thrift server of a simple_switch that runs our program without interfaces."""
    folder = tmp_path_factory.mktemp("bmv2")
    compiled = compile_for_bmv2(program_path("v1model"), folder)
    port = free_tcp_port()
    command = ["simple_switch", "--thrift-port", str(port), "--notifications-addr", f"ipc://{folder}/notify", compiled]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + START_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline, "simple_switch does not listen"
                    assert process.poll() is None, "simple_switch ended"
                    time.sleep(0.1)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.fixture
def jobs(describe: Callable[..., Deployment], a_job: Callable[..., dict[str, Any]]) -> Deployment:
    return describe([a_job(7, slots=16), a_job(9, slots=16, count=2, first_worker=3)], architecture="v1model")


def contents(control: Bmv2Control, jobs: Deployment) -> list[str]:
    """All tables and groups, without handles, which grow."""
    lines = control.run([f"table_dump {table}" for table in plan(jobs).tables] + ["mc_dump"]).splitlines()
    return sorted(line.split("rid=")[-1] for line in lines if "Dumping entry" not in line)


def test_a_plan_is_installed_and_installed_again(address: str, jobs: Deployment) -> None:
    control = Bmv2Control(address)
    control.install(plan(jobs))
    before = contents(control, jobs)
    assert sum("set_values_31_low" in line for line in before) == 257  # with the default
    control.install(plan(jobs))
    assert contents(control, jobs) == before


def test_jobs_are_opened_and_closed_one_by_one(address: str, jobs: Deployment) -> None:
    control = Bmv2Control(address)
    control.install(plan(jobs))
    first, second = allocate(jobs)
    control.open_job(first, 100, 16)
    control.open_job(second, 200, 16)
    highest_round = SlotCheck.full_name("highest_round")
    control.run([f"register_write {highest_round} {index} 5" for index in range(32)])
    control.open_job(first, 101, 16, superseded=[100])
    assert control.read_register(highest_round, 0, 32) == [0] * 16 + [5] * 16
    assert (control.open_epoch(first), control.open_epoch(second)) == (101, 200)
    assert control.worker_packets(first, 2) == 0
    status = read_status(control, (first, second))
    assert [(job.epoch, job.slots_used, job.packets) for job in status.jobs] == [(101, 0, 0), (200, 16, 0)]
    assert set(status.reasons.values()) == {0}
    control.close_job(first)
    assert (control.open_epoch(first), control.open_epoch(second)) == (None, 200)


def test_a_job_is_found_however_often_it_was_opened(address: str, jobs: Deployment) -> None:
    """The eighth bit of the count of uses is the sign of an entry's handle."""
    control = Bmv2Control(address)
    control.install(plan(jobs))
    job = allocate(jobs)[0]
    for epoch in range(1, 260):
        control.close_job(job)
        control.apply(JobCheck.open_entries(job, epoch, 16))
        assert control.open_epoch(job) == epoch
    control.close_job(job)
    assert control.open_epoch(job) is None


def test_what_simple_switch_refuses_is_an_error(address: str) -> None:
    control = Bmv2Control(address)
    with pytest.raises(TransportError, match="Invalid table name"):
        control.run(["table_clear nothing"])
    with pytest.raises(TransportError, match="DUPLICATE_ENTRY"):
        control.run(["table_clear ThcIngress.pass_row.row", *["table_add pass_row.row set_row 1 => 2"] * 2])


def test_no_switch_at_the_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(TransportError, match=f"simple_switch at 127.0.0.1:{port}"):
            Bmv2Control(f"127.0.0.1:{port}").run(["help"])
