"""A job description with an upstream: allowed values, and the operations for every target."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from switch_control import bfrt_python, bmv2_cli
from switch_control.bfrt_client import Server

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._scheme.adding.tables import LookupTable
from thc_p4_model.architectures import new_switch
from thc_p4_model.interfaces import Program
from thc_p4_model.switch import Switch
from thc_switch import Deployment, allocate, limits, plan
from thc_switch.controls import JobCheck, Leaf
from thc_switch.hello import JobConfig
from thc_switch.root_link import rack_settings_hash
from thc_switch.targets import bfshell, bmv2
from thc_switch.targets.grpc import DEFAULT_ADDRESS, GrpcControl
from thc_switch.targets.model import ModelControl

Fields = dict[str, Any]
Describe = Callable[..., Deployment]
MakeFields = Callable[..., Fields]
NewSwitch = Callable[..., Switch]
EPOCH, ROOT_EPOCH = 100, 200


def upstream(**changes: Any) -> Fields:
    return {"ip": "10.0.8.1", "mac": "02:00:00:00:98:01", "port": 40, "racks": "0-2,3-5", "rack": 1} | changes


@pytest.fixture
def leaf(describe: Describe, a_job: MakeFields) -> Deployment:
    """A leaf's job, and one that is none."""
    return describe([a_job(upstream=upstream()), a_job(2, count=2, first_worker=3)])


def test_workers_are_numbered_from_the_first_of_the_rack(leaf: Deployment) -> None:
    job = leaf.jobs[0]
    assert (job.num_workers, job.contributions, list(job.numbered_workers)) == (6, 3, [3, 4, 5])
    assert job.resolved.workers == 6
    assert job.upstream is not None
    assert job.upstream.other_racks == 0b111
    table = job.upstream.table(job.table.granularity)
    assert (table.bits, table.granularity, table.values[46]) == (8, 45, 45)


def test_lanes_have_the_root_in_common(describe: Describe, a_job: MakeFields) -> None:
    first, second = describe([a_job(upstream=upstream(), lanes=2)]).jobs
    assert (first.job_id, second.job_id) == (1, 2)
    assert first.upstream == second.upstream is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"racks": "0-5"}, "racks is '0-5', one rack: omit upstream"),
        ({"racks": "0-2,4-5"}, "racks has 4-5 where worker 3 comes next: racks name all workers from 0 without gaps"),
        ({"racks": "1-2,3-5"}, "racks has 1-2 where worker 0 comes next"),
        ({"racks": "0-2,3-1"}, "racks has 3-1 where worker 3 comes next"),
        ({"racks": "0-2;3-5"}, "racks has '0-2;3-5'; write first and last worker of each rack, as 0-3,4-7"),
        ({"racks": "0-2,"}, "racks has ''; write first and last"),
        ({"racks": "0-15,16-32"}, "racks names 33 workers; a job with a switch in it has up to 32 (thc-ps alone: 64)"),
        ({"rack": 2}, "rack is 2; racks names 2, numbered from 0"),
        ({"racks": "0-2,3-6"}, "3 workers are listed, and rack 1 of '0-2,3-6' has 4: list those of this rack alone"),
        ({"port": 64}, "upstream of job 1: port 64 is the CPU's or recirculates; use a front-panel port"),
        ({"ip": "10.0.9.254"}, "upstream of job 1 has the address of the switch; give it its own"),
        ({"ip": "10.0.0.1", "udp_port": 50001}, "upstream has the address of a worker, 10.0.0.1:50001"),
        ({"mac": "02:00:00:00:00:00"}, "upstream of job 1: 02:00:00:00:00:00 is at port 0 and at 40"),
    ],
    ids=str,
)
def test_what_cannot_work(describe: Describe, a_job: MakeFields, changes: Fields, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        describe([a_job(upstream=upstream(**changes))])
    assert message in str(caught.value)


def test_a_quorum_of_racks(describe: Describe, a_job: MakeFields) -> None:
    with pytest.raises(ConfigurationError, match="quorum: racks wait for all workers; omit it"):
        describe([a_job(quorum=2, upstream=upstream())])


def test_the_root_must_be_able_to_add_the_racks(describe: Describe, a_job: MakeFields) -> None:
    """Sums of all workers fit 8 bits, and sums of three racks as large as the largest do not."""
    with pytest.raises(ConfigurationError) as caught:
        describe([a_job(count=1, thc={"granularity": 30, "p": 1 / 32}, upstream=upstream(racks="0-2,3,4"))])
    assert (
        "granularity 30 * 3 workers of the largest rack * 3 racks = 270 does not fit the root's 8-bit sums (at most "
        "255): use thc.granularity 28 or less, or racks of the same size"
    ) in str(caught.value)
    describe([a_job(count=1, thc={"granularity": 28, "p": 1 / 32}, upstream=upstream(racks="0-2,3,4"))])


def test_all_workers_of_a_job_count(describe: Describe, a_job: MakeFields) -> None:
    with pytest.raises(ConfigurationError, match=r"50 \* 6 workers = 300 does not fit"):
        describe([a_job(thc={"granularity": 50, "p": 1 / 32}, upstream=upstream())])


def test_settings_of_a_rack_are_those_of_thc_ps(leaf: Deployment) -> None:
    """The same number as in tests/ps_software/shard_rack_test.cc: racks of switches and of servers meet at one root."""
    config = JobConfig(
        num_workers=6,
        code_bits=4,
        value_bits=8,
        table=LookupTable(4, 15, p=0.5, values=tuple(range(16)), cost=0.0),
        codes_per_packet=1024,
        quorum=6,
        settings_hash=0x01020304,
        arithmetic=0,
        slots_asked=0,
    )
    upstream = leaf.jobs[0].upstream
    assert upstream is not None
    assert rack_settings_hash(config, upstream) == 0x1547AE0E


def test_as_many_leaves_as_the_tables_hold(describe: Describe, a_job: MakeFields) -> None:
    def jobs(count: int) -> list[Fields]:
        return [a_job(number, slots=2, upstream=upstream()) for number in range(count)]

    most = limits.JOB_ENTRIES // (limits.JOB_ROWS + limits.ROOT_ROWS)
    allocations = allocate(describe(jobs(most)))
    ids = {each.root_replication_id for each in allocations}
    ids |= {each.replication_id(worker) for each in allocations for worker in range(limits.MAX_WORKERS)}
    assert len(ids) == most * (1 + limits.MAX_WORKERS)
    assert max(ids) <= 0xFFFF
    groups = {each.root_group for each in allocations} | {each.multicast_group for each in allocations}
    assert len(groups | {limits.FLOOD_GROUP}) == 2 * most + 1
    assert all((each.root_group >> 15, each.multicast_group >> 15) == (1, 0) for each in allocations)
    with pytest.raises(ConfigurationError, match=f"{most + 1} of {most + 1} jobs have an upstream: with so many jobs"):
        describe(jobs(most + 1))


# Targets.


def contents(switch: Switch) -> dict[str, Any]:
    tables = {name: sorted(map(str, switch.table_entries(name))) for name in switch.table_names()}
    return {"tables": tables, "groups": switch.multicast_groups()}


@pytest.mark.parametrize("architecture", ["tna", "v1model"])
def test_scripts_open_a_leaf(architecture: str, compiled: Callable[[str], Program], leaf: Deployment) -> None:
    expected, switch = new_switch(compiled(architecture)), new_switch(compiled(architecture))
    (allocation, _) = allocate(leaf)
    control = ModelControl(expected)
    control.install(plan(leaf))
    control.open_job(allocation, EPOCH, 64, (), ROOT_EPOCH)
    operations = [
        *plan(leaf).operations(),
        *Leaf.open_entries(allocation, EPOCH, ROOT_EPOCH),
        *JobCheck.root_entries(allocation, ROOT_EPOCH),
        *JobCheck.open_entries(allocation, EPOCH, 64),
    ]
    if architecture == "tna":
        bfrt_python.run(bfshell.script(operations, leaf.switch), bfrt_python.Bfrt(switch, "thc_tna"))
    else:
        bmv2_cli.run(bmv2.commands(operations), switch)
    assert contents(switch) == contents(expected)


def test_grpc_opens_and_closes_a_leaf(tna_switch: NewSwitch, leaf: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(tna_switch(), "thc_tna", DEFAULT_ADDRESS)
    monkeypatch.setitem(sys.modules, "bfrt_grpc", ModuleType("bfrt_grpc"))
    monkeypatch.setitem(sys.modules, "bfrt_grpc.client", server.module())
    control, (allocation, other) = GrpcControl(leaf.switch), allocate(leaf)
    control.install(plan(leaf))
    control.open_job(other, 300, 64)
    control.open_job(allocation, EPOCH, 64, (), ROOT_EPOCH)
    control.open_job(allocation, EPOCH + 1, 64, (EPOCH,), ROOT_EPOCH + 1)
    assert (control.open_epoch(allocation), control.open_epoch(other)) == (EPOCH + 1, 300)
    epochs = {entry.match["epoch"] for entry in server.switch.table_entries(Leaf.full_name("leaf"))}
    assert epochs == {EPOCH + 1, ROOT_EPOCH + 1}
    control.close_job(allocation)
    assert (control.open_epoch(allocation), control.open_epoch(other)) == (None, 300)
    assert not server.switch.table_entries(Leaf.full_name("leaf"))
