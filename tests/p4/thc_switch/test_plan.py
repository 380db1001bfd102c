"""Contents of the tables for a deployment."""

from collections.abc import Callable
from typing import Any

import pytest

from thc_switch import Deployment, Plan, allocate, limits, plan
from thc_switch.controls import SlotCheck
from thc_switch.plan import ClearRegister, Exact, Lpm, TableEntry

Describe = Callable[..., Deployment]
MakeFields = Callable[..., dict[str, Any]]


def rows(wanted: Plan, table: str) -> list[TableEntry]:
    return [entry for entry in wanted.entries if entry.table.endswith(f".{table}")]


def by_key(wanted: Plan, table: str) -> dict[Any, tuple[str, dict[str, int]]]:
    """Entries of a table with one key: value to action and parameters."""
    return {row.keys[0][1].value: (row.action, dict(row.params)) for row in rows(wanted, table)}  # type: ignore[union-attr]


@pytest.mark.parametrize("pipes", [1, 2, 4])
def test_passes_go_round_the_pipes_and_end_in_the_home_pipe(describe: Describe, a_job: MakeFields, pipes: int) -> None:
    deployment = describe([a_job()], pipes=pipes)
    ports = [entry.port for entry in deployment.switch.recirculation]
    wanted = plan(deployment)
    next_port = {number: params["port"] for number, (_, params) in by_key(wanted, "recirculation").items()}
    assert next_port[0] == next_port[8] == ports[0]
    assert {next_port[number] for number in range(1, 9)} == set(ports)
    for number in range(1, 9 - pipes):
        assert next_port[number] == next_port[number + pipes]


@pytest.mark.parametrize("pipes", [1, 2, 4])
def test_passes_of_a_pipe_have_rows_of_their_own(describe: Describe, a_job: MakeFields, pipes: int) -> None:
    deployment = describe([a_job(slots=limits.max_slots(pipes))], pipes=pipes)
    versions = limits.VERSIONS_PER_SLOT * deployment.switch.slots
    wanted = plan(deployment)
    row_base = {number: params["row_base"] for number, (_, params) in by_key(wanted, "row").items()}
    next_port = {number: params["port"] for number, (_, params) in by_key(wanted, "recirculation").items()}
    taken: set[tuple[int, int]] = set()
    for number in range(1, 9):
        words = {(next_port[number], row_base[number] + version) for version in range(versions)}
        assert not words & taken
        taken |= words
    assert max(word for _, word in taken) == limits.REGISTER_WORDS - 1


def test_port_roles(describe: Describe, a_job: MakeFields, a_worker: MakeFields) -> None:
    workers = [a_worker(0, port=3), a_worker(1, port=128 + 5)]
    wanted = plan(describe([a_job(workers=workers)], pipes=2))
    special = {64: ("cpu", {}), 68: ("recirculation", {}), 196: ("recirculation", {})}
    others = {port: ("front_of_other_pipe", {"port": 68}) for port in range(128, 512)}
    assert by_key(wanted, "port_role") == others | special, "also ports that the description does not name"
    assert len(rows(wanted, "port_role")) == len(others | special)


def test_the_home_pipe_may_be_any(describe: Describe) -> None:
    wanted = plan(describe([], cpu_port=192, recirculation=[{"port": 196}, {"port": 68}]))
    roles = by_key(wanted, "port_role")
    assert roles.pop(192) == ("cpu", {})
    assert roles.pop(68) == roles.pop(196) == ("recirculation", {})
    assert set(roles) == {port for port in range(512) if port >> 7 != 1} - {68}


def test_bmv2_has_one_pipe(describe: Describe, a_job: MakeFields, a_worker: MakeFields) -> None:
    workers = [a_worker(0, port=3), a_worker(1, port=300)]
    wanted = plan(describe([a_job(workers=workers)], architecture="v1model"))
    assert {action for action, _ in by_key(wanted, "port_role").values()} == {"cpu", "recirculation"}


def test_lookup_tables_hold_pairs_of_table_values(deployment: Deployment) -> None:
    wanted, values = plan(deployment), deployment.jobs[0].table.values
    for block in range(32):
        for half in ("high", "low"):
            looked_up = by_key(wanted, f"lookup_{block}_{half}")
            assert len(looked_up) == 256
            for codes, (action, params) in looked_up.items():
                assert action == f"set_values_{block}_{half}"
                assert params["values"].to_bytes(2, "big") == bytes([values[codes >> 4], values[codes & 15]])


def test_workers_and_their_replicas(describe: Describe, a_job: MakeFields) -> None:
    deployment = describe([a_job(7, count=2), a_job(9, count=2, first_worker=1)])
    wanted = plan(deployment)
    first = deployment.jobs[0].workers[0]
    assert rows(wanted, "worker")[0].keys == (
        ("job_id", Exact(7)),
        ("worker_id", Exact(0)),
        ("src_ip", Exact(int(first.ip))),
        ("src_port", Exact(first.udp_port)),
    )
    assert [dict(row.params)["worker_bit"] for row in rows(wanted, "worker")] == [1, 2, 1, 2]
    groups = {group.group: group.replicas for group in wanted.groups}
    replicas = by_key(wanted, "replica")
    for allocation in allocate(deployment):
        sent_to = groups[allocation.multicast_group]
        assert len(sent_to) == 2
        for (port, rid), (number, worker) in zip(sent_to, enumerate(allocation.job.workers), strict=True):
            action, params = replicas[rid]
            assert (action, port) == ("to_worker", worker.port)
            assert params == {
                "mac": int(worker.mac.replace(":", ""), 16),
                "ip": int(worker.ip),
                "port": worker.udp_port,
                "worker_id": number,
            }


def test_everything_else_is_bridged_and_routed(describe: Describe, a_job: MakeFields) -> None:
    station = {"mac": "02:00:00:00:99:01", "port": 9}
    route = {"prefix": "10.1.0.0/16", "next_hop_mac": "02:00:00:00:99:02", "port": 10}
    wanted = plan(describe([a_job(count=2)], stations=[station], routes=[route]))
    stations = by_key(wanted, "mac_forward")
    assert stations[0x020000009901] == ("forward", {"port": 9})
    assert stations[0x020000000001] == ("forward", {"port": 1})
    assert stations[0x02000000FFFE] == ("to_router", {})
    (route,) = rows(wanted, "ipv4_route")
    assert route.keys == (("dst_ip", Lpm(0x0A010000, 16)),)
    assert dict(route.params) == {"dst_mac": 0x020000009902, "src_mac": 0x02000000FFFE, "port": 10}
    (flood,) = (group for group in wanted.groups if group.group == 65535)
    assert flood.replicas == ((0, 0), (1, 0), (9, 0), (10, 0))


def test_the_cpu_port_is_brought_up_and_not_flooded_to(describe: Describe, a_job: MakeFields) -> None:
    wanted = plan(describe([a_job()], ports=[{"number": 9, "speed": "100G"}], cpu_port_speed="10G"))
    assert [(port.number, port.speed) for port in wanted.ports] == [(9, "100G"), (64, "10G")]
    (flood,) = (group for group in wanted.groups if group.group == 65535)
    assert {port for port, _ in flood.replicas} == {0, 1, 2, 9}


def test_jobs_are_closed_until_the_agent_opens_them(deployment: Deployment) -> None:
    assert not rows(plan(deployment), "job")
    assert "ThcIngress.job_check.job" in plan(deployment).tables


def test_a_reset_clears_the_rounds_of_that_job_alone(describe: Describe, a_job: MakeFields) -> None:
    _, second = allocate(describe([a_job(1, slots=100), a_job(2, slots=50)]))
    assert SlotCheck.clear_job(second) == (
        ClearRegister("ThcIngress.slot_check.highest_round", 100, 50),
        ClearRegister("ThcIngress.slot_check.slot_use", 200, 100),
    )


def test_a_plan_is_stable_and_changes_as_little_as_its_description(
    describe: Describe, a_job: MakeFields, a_worker: MakeFields
) -> None:
    before = plan(describe([a_job()]))
    assert plan(describe([a_job()])) == before
    workers = [a_worker(0), a_worker(1), a_worker(2, udp_port=50002)]
    changes = {*plan(describe([a_job(workers=workers)])).lines()} ^ {*before.lines()}
    assert len(changes) == 4
    assert sum("job_check.worker" in change for change in changes) == 2
    assert sum("replica.replica" in change for change in changes) == 2
