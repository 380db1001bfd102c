"""BF Runtime gRPC: the control plane's calls of the SDE's client library."""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from switch_control.bfrt_client import CounterTable, MatchTable, RegisterTable, RpcError, Server

from byteps_thc._base.errors import ConfigurationError, TransportError
from thc_p4_model.switch import Switch
from thc_switch import Deployment, allocate, plan
from thc_switch.controls import JobCheck, SlotCheck
from thc_switch.plan import ClearTable, Section, TableEntry
from thc_switch.status import read_status
from thc_switch.targets.grpc import DEFAULT_ADDRESS, GrpcControl
from thc_switch.targets.model import ModelControl


@pytest.fixture
def jobs(describe: Callable[..., Deployment], a_job: Callable[..., dict[str, Any]]) -> Deployment:
    return describe(
        [a_job(7, count=4), a_job(9, count=2, first_worker=3)],
        ports=[{"number": 0, "speed": "100G", "fec": "reed_solomon", "auto_negotiation": False}],
        routes=[{"prefix": "10.1.0.0/16", "next_hop_mac": "02:00:00:00:99:02", "port": 10}],
        recirculation=[{"port": 68}, {"port": 130, "loopback_speed": "100G"}],
    )


@pytest.fixture(scope="module")
def tofino(tna_switch: Callable[..., Switch]) -> Switch:
    return tna_switch(pipes=2)


@pytest.fixture
def server(tofino: Switch, monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server(tofino, "thc_tna", DEFAULT_ADDRESS)
    monkeypatch.setitem(sys.modules, "bfrt_grpc", ModuleType("bfrt_grpc"))
    monkeypatch.setitem(sys.modules, "bfrt_grpc.client", server.module())
    return server


def test_a_plan_is_installed_and_installed_again(
    server: Server, jobs: Deployment, tna_switch: Callable[..., Switch]
) -> None:
    wanted, expected = plan(jobs), tna_switch(pipes=2)
    ModelControl(expected).install(wanted)
    control = GrpcControl(jobs.switch)
    for _ in range(2):
        control.install(wanted)
        for table in wanted.tables:
            ours, theirs = server.switch.table_entries(table), expected.table_entries(table)
            assert sorted(map(str, ours)) == sorted(map(str, theirs))
        assert server.groups() == {group: tuple(map(tuple, nodes)) for group, nodes in groups_of(expected).items()}


def groups_of(switch: Switch) -> dict[int, list[tuple[int, int]]]:
    return {group: [(node.port, node.rid) for node in nodes] for group, nodes in switch.multicast_groups().items()}


def test_ports(server: Server, jobs: Deployment) -> None:
    GrpcControl(jobs.switch).install(plan(jobs))
    assert server.chip["tf1.pktgen.port_cfg"].rows == {68: {"recirculation_enable": True}}
    assert server.chip["$PORT"].rows == {
        0: {
            "$SPEED": "BF_SPEED_100G",
            "$FEC": "BF_FEC_TYP_REED_SOLOMON",
            "$AUTO_NEGOTIATION": "PM_AN_FORCE_DISABLE",
            "$PORT_ENABLE": True,
        },
        130: {
            "$SPEED": "BF_SPEED_100G",
            "$FEC": "BF_FEC_TYP_NONE",
            "$LOOPBACK_MODE": "BF_LPBK_MAC_NEAR",
            "$PORT_ENABLE": True,
        },
    }


def test_ports_that_are_up_stay_up(server: Server, jobs: Deployment) -> None:
    control, ports = GrpcControl(jobs.switch), server.chip["$PORT"]
    for _ in range(2):
        control.install(plan(jobs), [Section.PORTS])
    assert ports.writes == [0, 130], "a port goes down when its speed is set, even to the speed it has"
    ports.rows[0]["$SPEED"] = "BF_SPEED_25G"
    ports.rows[130]["$PORT_ENABLE"] = False
    control.install(plan(jobs), [Section.PORTS])
    assert ports.writes == [0, 130, 0, 130]


def test_reads_that_fail_are_errors_the_agent_survives(
    server: Server, jobs: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = GrpcControl(jobs.switch)
    control.install(plan(jobs), [Section.TABLES])
    first, _ = allocate(jobs)

    def broken(*_: object) -> Iterator[None]:
        yield from ()
        raise RpcError("deadline exceeded")

    for kind in (MatchTable, RegisterTable, CounterTable):
        monkeypatch.setattr(kind, "entry_get", broken)
    for read in (
        lambda: control.open_epoch(first),
        lambda: control.worker_packets(first, 0),
        lambda: control.close_job(first),
        lambda: read_status(control, [first]),
        lambda: control.read_counter("ThcIngress.reasons", 0, 1),
    ):
        with pytest.raises(TransportError, match="deadline exceeded"):
            read()
    monkeypatch.undo()
    del server


def test_a_switch_without_the_plan(server: Server, jobs: Deployment) -> None:
    del server
    control = GrpcControl(jobs.switch)
    control.apply([ClearTable(JobCheck.full_name("worker"))])
    with pytest.raises(TransportError, match="run thc switch install first"):
        control.worker_packets(allocate(jobs)[0], 0)


def test_jobs_are_opened_and_closed_one_by_one(server: Server, jobs: Deployment) -> None:
    control = GrpcControl(jobs.switch)
    control.install(plan(jobs))
    first, second = allocate(jobs)
    control.open_job(first, 100, 64)
    control.open_job(second, 200, 64)
    register = SlotCheck.full_name("highest_round")
    for slot in range(128):
        server.switch.register_write(register, slot, 5)
    control.open_job(first, 101, 64, superseded=[100])
    assert control.read_register(register, 0, 128) == [0] * 64 + [5] * 64
    assert (control.open_epoch(first), control.open_epoch(second)) == (101, 200)
    status = read_status(control, (first, second))
    assert [(job.epoch, job.slots_used, job.packets) for job in status.jobs] == [(101, 0, 0), (200, 64, 0)]
    assert control.worker_packets(second, 1) == 0
    control.close_job(first)
    assert (control.open_epoch(first), control.open_epoch(second)) == (None, 200)


def test_what_the_switch_refuses_is_an_error(server: Server, jobs: Deployment) -> None:
    del server
    too_wide = TableEntry(
        "ThcIngress.service.arp_responder", (("target_ip", plan(jobs).entries[0].keys[0][1]),), "reply"
    )
    with pytest.raises(KeyError):
        GrpcControl(jobs.switch).apply([too_wide])


def test_another_program_or_no_server(server: Server, describe: Callable[..., Deployment]) -> None:
    del server
    with pytest.raises(TransportError, match="no BF Runtime for other at"):
        GrpcControl(describe([], program="other").switch)
    with pytest.raises(TransportError, match=r"at 10\.0\.0\.9:50052: is bf_switchd running it"):
        GrpcControl(describe([], control_address="10.0.0.9:50052").switch)


def test_without_the_sde(jobs: Deployment) -> None:
    with pytest.raises(ConfigurationError, match="bfrt_grpc is not importable: it comes with the SDE"):
        GrpcControl(jobs.switch)
