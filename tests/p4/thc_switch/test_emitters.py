"""What is emitted for simple_switch_CLI does to the P4 programs what ModelControl does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from switch_control import bmv2_cli

from thc_p4_model.switch import Switch
from thc_switch import Deployment, plan
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


def test_cli_commands_install_the_plan(v1model_switch: NewSwitch, jobs: Deployment) -> None:
    expected, switch = v1model_switch(), v1model_switch()
    wanted = plan(jobs)
    ModelControl(expected).install(wanted)
    bmv2_cli.apply(wanted.operations(), switch)
    assert contents(switch) == contents(expected)


def test_model_installs_again_without_change(tna_switch: NewSwitch, jobs: Deployment) -> None:
    switch = tna_switch()
    control = ModelControl(switch)
    control.install(plan(jobs))
    before = contents(switch)
    control.install(plan(jobs))
    assert contents(switch) == before
