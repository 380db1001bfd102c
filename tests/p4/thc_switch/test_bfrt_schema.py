"""The plan against the BF Runtime schema of the TNA program, where a P4 compiler with Tofino back end is installed."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from thc_lab.tofino_compiler import COMPILER
from thc_switch import Deployment, allocate, plan
from thc_switch.controls import JobCheck, Leaf, SlotCheck
from thc_switch.plan import ClearRegister, ClearTable, DefaultAction, Exact, Lpm, Range, TableEntry, Ternary
from thc_switch.programs import program_path
from thc_switch.targets.bfrt_names import register_fields

COMPILE_S = 600
MATCH_TYPES = {Exact: "Exact", Ternary: "Ternary", Lpm: "LPM", Range: "Range"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(COMPILE_S + 60),
    pytest.mark.skipif(COMPILER is None, reason="neither bf-p4c nor p4c-barefoot is on PATH"),
]


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Tables, registers and counters by name, without the name of the pipe."""
    folder = tmp_path_factory.mktemp("bfrt")
    command = [str(COMPILER), "--target", "tofino", "--arch", "tna", "--bf-rt-schema", str(folder / "bf-rt.json")]
    command += ["-o", str(folder / "out"), str(program_path("tna"))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S, check=False)
    assert (folder / "bf-rt.json").is_file(), result.stderr[-2000:]
    tables = json.loads((folder / "bf-rt.json").read_text())["tables"]
    return {table["name"].removeprefix("pipe."): table for table in tables}


def fields(table: dict[str, Any]) -> list[str]:
    return [field["singleton"]["name"] for field in table["data"]]


def check_action(table: dict[str, Any], operation: TableEntry | DefaultAction) -> None:
    actions = {action["name"]: action["data"] for action in table["action_specs"]}
    control = operation.table.rpartition(".")[0]
    params = actions[f"{control}.{operation.action}"]
    assert [param["name"] for param in params] == [name for name, _ in operation.params]
    for param, (_, value) in zip(params, operation.params, strict=True):
        assert value >> param["type"]["width"] == 0


def check_entry(table: dict[str, Any], entry: TableEntry) -> None:
    keys = [key for key in table["key"] if key["name"] != "$MATCH_PRIORITY"]
    assert [key["name"] for key in keys] == [name for name, _ in entry.keys]
    assert [key["match_type"] for key in keys] == [MATCH_TYPES[type(match)] for _, match in entry.keys]
    assert (len(keys) < len(table["key"])) == (entry.priority is not None)
    check_action(table, entry)


def test_everything_planned_is_there(
    schema: dict[str, dict[str, Any]], describe: Callable[..., Deployment], a_job: Callable[..., dict[str, Any]]
) -> None:
    deployment = describe(
        [a_job(upstream={"ip": "10.0.8.1", "mac": "02:00:00:00:98:01", "port": 40, "racks": "0-2,3-5", "rack": 0})],
        pipes=2,
        stations=[{"mac": "02:00:00:00:99:01", "port": 130}],
        routes=[{"prefix": "10.1.0.0/16", "next_hop_mac": "02:00:00:00:99:02", "port": 10}],
    )
    (allocation,) = allocate(deployment)
    operations = [*plan(deployment).operations(), *JobCheck.superseded_entries(allocation, [2])]
    operations += [*JobCheck.open_entries(allocation, 1, 64), *JobCheck.root_entries(allocation, 3)]
    operations += Leaf.open_entries(allocation, 1, 3)
    checked = 0
    for operation in operations:
        match operation:
            case TableEntry(table=name):
                check_entry(schema[name], operation)
            case DefaultAction(table=name):
                check_action(schema[name], operation)
            case ClearTable(table=name):
                assert schema[name]["table_type"] == "MatchAction_Direct"
            case ClearRegister(register=name):
                assert fields(schema[name]) == [f"{name}.{field}" for field in register_fields(name)]
            case _:
                continue
        checked += 1
    assert checked > 64 * 256


def test_counters_are_there(schema: dict[str, dict[str, Any]]) -> None:
    packets = "$COUNTER_SPEC_PKTS"
    assert fields(schema["ThcIngress.reasons"]) == [packets]
    assert fields(schema[SlotCheck.full_name("slot_packets")]) == [packets]
    assert packets in fields(schema[JobCheck.full_name("worker")])
