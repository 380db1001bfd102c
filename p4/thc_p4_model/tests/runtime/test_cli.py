from pathlib import Path

import pytest
from typer.testing import CliRunner

from thc_p4_model.__main__ import app

PROGRAMS = Path(__file__).parent / "programs"


def invoke(*args: object):
    return CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": "300", "NO_COLOR": "1"})


def test_check_says_what_is_in_a_program():
    result = invoke("check", PROGRAMS / "tna_commands.p4", "--pipes", 2)
    assert result.exit_code == 0
    assert "tna" in result.output.replace("\n", "")
    assert "ingress: 186 PHV bits" in result.output.replace("\n", "")


def test_check_of_a_wrong_program_names_the_line(tmp_path):
    path = tmp_path / "wrong.p4"
    path.write_text("#include <core.p4>\nheader h { bit<8> a }\n")
    result = invoke("check", path)
    assert result.exit_code == 1
    assert "wrong.p4:2: " in result.output.replace("\n", "")


def test_dump_is_python():
    result = invoke("dump", PROGRAMS / "v1model_commands.p4")
    assert result.exit_code == 0
    compile(result.output, "dump", "exec")


@pytest.mark.parametrize("generation", [1, 2])
def test_stf_runs_tests(generation, tmp_path):
    wrong = tmp_path / "wrong.stf"
    wrong.write_text("expect 1 00\n")
    program = (PROGRAMS / "tna_commands.p4", "-D", f"__TARGET_TOFINO__={generation}")
    passed = invoke("stf", *program, PROGRAMS / "tna_commands.stf")
    assert passed.exit_code == 0, passed.output
    assert "13 packets" in passed.output
    both = invoke("stf", *program, wrong, PROGRAMS / "tna_commands.stf")
    assert both.exit_code == 1
    assert "wrong.stf:1: port 1 did not send 00" in both.output
    assert "passed" in both.output


def test_lines_for_grep_are_not_wrapped(tmp_path):
    """Nor are brackets in paths markup."""
    folder = tmp_path / ("a-long-name-" * 15) / "[red]"
    folder.mkdir(parents=True)
    wrong, right = folder / "wrong.stf", folder / "right.stf"
    wrong.write_text("expect 1 00\n")
    right.write_text((PROGRAMS / "tna_commands.stf").read_text())
    result = invoke("stf", PROGRAMS / "tna_commands.p4", "-D", "__TARGET_TOFINO__=1", wrong, right)
    lines = result.output.splitlines()
    assert lines[0].startswith(f"failed {wrong}:1: port 1 did not send 00"), lines
    assert lines[1] == f"passed {right} (13 packets)"
    broken = folder / "broken.p4"
    broken.write_text("header h { bit<8> a }\n")
    [line] = invoke("check", broken).output.splitlines()
    assert line.startswith(f"error {broken}:1: "), line


def test_run_with_a_udp_port(tmp_path):
    setup = tmp_path / "setup.stf"
    setup.write_text("add ports index:1 to_port(port:2)\n")
    program = PROGRAMS / "v1model_commands.p4"
    result = invoke("run", program, "--port", "1=udp:127.0.0.1:0", "--setup", setup, "--duration-s", 0.1)
    assert result.exit_code == 0, result.output
    assert "received" in result.output.replace("\n", "")


@pytest.mark.parametrize(
    ("port", "message"),
    [
        ("x", "write NUMBER=INTERFACE"),
        ("1=thc-not-there", "No such device"),
        ("1=udp:127.0.0.1:abc", "the UDP port is a number"),
        ("1=udp:127.0.0.1:70000", "the UDP port is a number"),
    ],
)
def test_run_explains_wrong_ports(port, message):
    result = invoke("run", PROGRAMS / "v1model_commands.p4", "--port", port, "--duration-s", 0.1)
    assert result.exit_code == 1
    assert message in result.output.replace("\n", "")


def test_run_refuses_one_port_number_twice():
    ports = ("--port", "1=udp:127.0.0.1:0", "--port", "1=udp:127.0.0.1:0")
    result = invoke("run", PROGRAMS / "v1model_commands.p4", *ports, "--duration-s", 0.1)
    assert result.exit_code == 1
    assert "port 1 is given twice" in result.output.replace("\n", "")
