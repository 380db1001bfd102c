"""Scripts for bfshell and simple_switch_CLI have the same effect on the P4 programs as ModelControl."""

from collections.abc import Callable
from typing import Any

import pytest
from switch_control import bfrt_python, bmv2_cli

from byteps_thc._base.errors import ConfigurationError
from thc_p4_model.switch import Switch
from thc_switch import Deployment, allocate, plan
from thc_switch.controls import JobCheck, SlotCheck
from thc_switch.plan import ClearRegister, Operation, RemoveEntries
from thc_switch.targets import bfshell, bmv2
from thc_switch.targets.model import ModelControl

Describe = Callable[..., Deployment]
MakeFields = Callable[..., dict[str, Any]]
NewSwitch = Callable[..., Switch]


@pytest.fixture
def jobs(describe: Describe, a_job: MakeFields) -> Deployment:
    """Two jobs, a route, a station, ports of all kinds."""
    return describe(
        [a_job(7, count=4), a_job(9, count=2, first_worker=3, quorum=1)],
        ports=[{"number": 0, "speed": "100G", "fec": "reed_solomon"}, {"number": 1, "speed": "25G"}],
        stations=[{"mac": "02:00:00:00:99:01", "port": 9}],
        routes=[{"prefix": "10.1.0.0/16", "next_hop_mac": "02:00:00:00:99:02", "port": 10}],
    )


def contents(switch: Switch) -> dict[str, Any]:
    """Everything the control plane may change, registers by whether they are zero."""
    tables = {name: sorted(map(str, switch.table_entries(name))) for name in switch.table_names()}
    defaults = {name: table._default for name, table in switch._instances[0].tables.items()}
    return {"tables": tables, "defaults": defaults, "groups": switch.multicast_groups()}


def test_bfrt_python_installs_the_plan(tna_switch: NewSwitch, jobs: Deployment) -> None:
    expected, switch = tna_switch(), tna_switch()
    wanted = plan(jobs)
    ModelControl(expected).install(wanted)
    bfrt = bfrt_python.Bfrt(switch, "thc_tna")
    script = bfshell.script(wanted.operations(), jobs.switch)
    assert bfrt_python.run(script, bfrt) == f"{bfshell.DONE}\n"
    assert contents(switch) == contents(expected)
    assert bfrt.recirculation == {68}
    assert bfrt.ports[0] == {
        "SPEED": "BF_SPEED_100G",
        "FEC": "BF_FEC_TYP_REED_SOLOMON",
        "AUTO_NEGOTIATION": "PM_AN_DEFAULT",
        "PORT_ENABLE": True,
    }
    bfrt_python.run(script, bfrt)
    assert contents(switch) == contents(expected), "a script may be run again"
    assert bfrt.port.port.flaps == [0, 1], "a port goes down when its speed is set, even to the speed it has"
    bfrt.ports[1]["SPEED"] = "BF_SPEED_10G"
    bfrt_python.run(script, bfrt)
    assert bfrt.port.port.flaps == [0, 1, 1]


def test_cli_commands_install_the_plan(v1model_switch: NewSwitch, jobs: Deployment) -> None:
    expected, switch = v1model_switch(), v1model_switch()
    wanted = plan(jobs)
    ModelControl(expected).install(wanted)
    bmv2_cli.run(bmv2.commands(wanted.operations()), switch)
    assert contents(switch) == contents(expected)


def reset(jobs: Deployment, index: int) -> list[Operation]:
    allocation = allocate(jobs)[index]
    return [RemoveEntries(JobCheck.full_name("job"), "job_id", allocation.job_id), *SlotCheck.clear_job(allocation)]


def test_bfrt_python_resets_one_job(tna_switch: NewSwitch, jobs: Deployment) -> None:
    switch = tna_switch()
    control, allocations = ModelControl(switch), allocate(jobs)
    control.install(plan(jobs))
    for epoch, allocation in enumerate(allocations, start=100):
        control.open_job(allocation, epoch, allocation.slots)
    registers = {operation.register for operation in reset(jobs, 0) if isinstance(operation, ClearRegister)}
    for register in registers:
        for index in range(4 * 64):
            now = switch.register_read(register, index)
            switch.register_write(register, index, dict.fromkeys(now, 1) if isinstance(now, dict) else 1)
    bfrt_python.run(bfshell.script(reset(jobs, 0), jobs.switch), bfrt_python.Bfrt(switch, "thc_tna"))
    assert [control.open_epoch(allocation) for allocation in allocations] == [None, 101]
    for register, cleared in (("highest_round", 64), ("slot_use", 128)):
        values = switch.register_read_range(SlotCheck.full_name(register), 0, 2 * cleared)
        zero = dict.fromkeys(values[0], 0) if isinstance(values[0], dict) else 0
        assert [value == zero for value in values] == [True] * cleared + [False] * cleared


def test_cli_commands_cannot_remove_entries(jobs: Deployment) -> None:
    with pytest.raises(ConfigurationError, match="needs their handles"):
        bmv2.commands(reset(jobs, 0))


def test_lookup_tables_share_their_rows_in_a_script(jobs: Deployment) -> None:
    script = bfshell.script(plan(jobs).operations(), jobs.switch)
    assert script.count("(255, 3855)") == 1  # two codes 15, of table value 15
    assert len(script) < 40_000
