"""`thc doctor` as a whole: on this host, and on hosts that lack something."""

import os
import socket
import stat
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from doctor_host import run_doctor, without_modules
from typer.testing import CliRunner

from byteps_thc._cli.cli import app
from byteps_thc._cli.doctor.finding import Finding, State, run_check
from byteps_thc._cli.doctor.installation import check_thc_ps
from byteps_thc._cli.doctor.processes import answer_in, run_command
from byteps_thc._native._comm import has_dpdk


def executable(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def gone(marker: str) -> bool:
    """Whether no process has the marker in its command line, within some seconds."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if not any(marker in command_line(folder) for folder in Path("/proc").glob("[0-9]*")):
            return True
        time.sleep(0.05)
    return False


def command_line(folder: Path) -> str:
    try:
        return (folder / "cmdline").read_text(errors="replace")
    except OSError:  # it ended meanwhile
        return ""


def test_table_of_this_host() -> None:
    result = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for check in ("kernels", "thc-ps", "torch", "UDP port 48865", "DPDK"):
        assert check in result.output
    assert "What byteps_thc needs works." in result.output


def test_lines_of_a_pipe_fit_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    result = CliRunner().invoke(app, ["doctor"])
    assert max(map(len, result.stdout.splitlines())) <= 120


def test_findings_of_this_host_and_a_server_that_is_not_there() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        unused.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{unused.getsockname()[1]}"
    findings = run_doctor("--server", server)
    assert [name for name, finding in findings.items() if finding["fails"]] == [f"server {server}"]
    assert findings["torch"]["state"] == "ok"
    assert "gloo" in findings["torch"]["meaning"]
    assert findings["DPDK"]["state"] == ("ok" if has_dpdk() else "optional")
    assert "huge pages, of which" in findings["DPDK"]["meaning"] or not has_dpdk()


def test_answer_of_a_probe_among_the_messages_of_libraries() -> None:
    assert answer_in('EAL: starts\n{"error": "no"}\nUsage: thc [options]\n') == {"error": "no"}
    assert answer_in("Usage: thc [options]\n") is None


def test_without_torch(tmp_path: Path) -> None:
    findings = run_doctor(environment=without_modules(tmp_path, "torch"))
    assert findings["torch"]["state"] == "optional"
    assert findings["torch"]["command"] == "pip install torch"
    assert findings["GPU"]["state"] == "optional"
    assert findings["kernels"]["state"] == "ok"


def test_without_thc_ps(bare_python: str) -> None:
    code = (
        "from byteps_thc._cli.doctor.installation import check_thc_ps; "
        "[finding] = check_thc_ps(); print(finding.state.value, finding.fails, finding.command)"
    )
    environment = os.environ | {"PATH": "/nonexistent", "THC_PS": ""}
    command = [bare_python, "-P", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert result.stdout.startswith("missing True pip install")


def test_with_a_thc_ps_of_another_version_or_that_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "echo libfoo.so: cannot open >&2\nexit 127"
    for program, meaning in (("echo thc-ps 0.0.1", "version 0.0.1"), (broken, "libfoo.so")):
        monkeypatch.setenv("THC_PS", executable(tmp_path / "thc-ps", f"#!/bin/sh\n{program}\n"))
        [finding] = check_thc_ps()
        assert finding.fails
        assert meaning in finding.meaning


def test_a_program_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    marker = "918273"
    hang = executable(tmp_path / "hang", f"#!/bin/sh\nsleep {marker} &\nsleep {marker}\n")
    start = time.monotonic()
    outcome = run_command([hang], deadline_s=1.0)
    assert time.monotonic() - start < 20
    assert (outcome.code, outcome.reason) == (None, "no answer in time")
    assert gone(marker)


def test_what_a_program_leaves_in_the_background_is_ended(tmp_path: Path) -> None:
    marker = "918274"
    leave = executable(tmp_path / "leave", f"#!/bin/sh\nsleep {marker} >/dev/null 2>&1 &\necho done\n")
    outcome = run_command([leave], deadline_s=10.0)
    assert (outcome.code, outcome.output) == (0, "done\n")
    assert gone(marker)


def test_a_program_that_is_not_there() -> None:
    outcome = run_command(["/nonexistent/program"], deadline_s=1.0)
    assert outcome.code == 127
    assert "No such file" in outcome.reason


def test_a_check_that_raises_is_a_problem_of_its_own() -> None:
    def check_something() -> Sequence[Finding]:
        raise PermissionError("/sys is not readable")

    [finding] = run_check(check_something)
    assert (finding.check, finding.state) == ("something", State.PROBLEM)
    assert "/sys is not readable" in finding.meaning
    assert not finding.fails


def test_a_server_that_is_no_address_is_one_line() -> None:
    for server in ("127.0.0.1:port", ":1", "127.0.0.1:70000", "no-such-host.invalid"):
        result = CliRunner().invoke(app, ["doctor", "--server", server])
        assert result.exit_code == 1
        assert result.stderr.splitlines()[-1].startswith("thc: --server")
