"""`thc doctor` as a whole: on this host, and on hosts that lack something."""

from __future__ import annotations

import socket
import stat
import time
from pathlib import Path

import pytest
from doctor_host import run_doctor, without_modules
from typer.testing import CliRunner

from byteps_thc.cli import app
from byteps_thc.doctor.finding import State
from byteps_thc.doctor.frameworks import check_torch
from byteps_thc.doctor.installation import check_thc_ps
from byteps_thc.session import has_dpdk


def executable(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_table_of_this_host() -> None:
    result = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for check in ("kernels", "thc-ps", "torch", "UDP port 48865", "DPDK", "huge pages", "network namespaces"):
        assert check in result.output
    assert "What byteps_thc needs works." in result.output


def test_findings_of_this_host_and_a_server_that_is_not_there() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        unused.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{unused.getsockname()[1]}"
    findings = run_doctor("--server", server)
    assert [name for name, finding in findings.items() if finding["fails"]] == [f"server {server}"]
    assert findings["torch"]["state"] == "ok"
    assert "gloo" in findings["torch"]["meaning"]
    assert findings["UDP GSO and GRO"]["state"] == "ok"
    assert findings["DPDK"]["state"] == ("ok" if has_dpdk() else "optional")


def test_without_torch_and_byteps(tmp_path: Path) -> None:
    findings = run_doctor(environment=without_modules(tmp_path, "torch", "byteps"))
    assert findings["torch"]["state"] == "optional"
    assert findings["torch"]["command"] == "pip install torch"
    assert findings["GPU"]["state"] == "optional"
    assert findings["kernels"]["state"] == "ok"


def test_with_a_torch_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half an installation: the package is there, and a library that it needs is not."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import ctypes\nctypes.CDLL('libtorch_lost.so')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    [finding] = check_torch()
    assert finding.state is State.PROBLEM
    assert "libtorch_lost.so" in finding.meaning
    assert not finding.fails


def test_without_thc_ps(bare_python: str) -> None:
    findings = run_doctor(python=bare_python, environment={"PATH": "/nonexistent", "THC_PS": ""})
    assert findings["thc-ps"]["state"] == "missing"
    assert findings["thc-ps"]["fails"]
    assert findings["thc-ps"]["command"].startswith("pip install")
    # Without a PATH there is no `ip` and no `nvidia-smi` either.
    assert findings["network namespaces"]["state"] == "optional"
    assert findings["P4 tools"]["state"] == "optional"


def test_with_a_thc_ps_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THC_PS", executable(tmp_path / "thc-ps", "#!/bin/sh\necho thc-ps 0.0.1\n"))
    [finding] = check_thc_ps()
    assert finding.fails
    assert "version 0.0.1" in finding.meaning


def test_with_a_thc_ps_that_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "#!/bin/sh\necho libfoo.so: cannot open >&2\nexit 127\n"
    monkeypatch.setenv("THC_PS", executable(tmp_path / "thc-ps", broken))
    [finding] = check_thc_ps()
    assert finding.fails
    assert "libfoo.so" in finding.meaning


def test_with_programs_that_hang(tmp_path: Path) -> None:
    """Neither they nor what they started outlive the deadlines."""
    marker = "918273"
    hang = f"#!/bin/sh\nsleep {marker} &\nsleep {marker}\n"
    for name in ("thc-ps", "nvidia-smi", "unshare"):
        executable(tmp_path / name, hang)
    start = time.monotonic()
    path = f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin"
    findings = run_doctor(environment={"THC_PS": str(tmp_path / "thc-ps"), "PATH": path})
    assert time.monotonic() - start < 40
    assert findings["thc-ps"]["fails"]
    assert "no answer in time" in findings["thc-ps"]["meaning"]
    assert findings["GPU"]["state"] == "problem"
    assert findings["network namespaces"]["state"] == "optional"
    commands = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    assert not [command for command in commands if marker.encode() in command]


def test_a_server_that_is_no_address_is_one_line() -> None:
    for server in ("127.0.0.1:port", ":1", "127.0.0.1:70000", "no-such-host.invalid"):
        result = CliRunner().invoke(app, ["doctor", "--server", server])
        assert result.exit_code == 1
        assert result.stderr.splitlines()[-1].startswith("thc: --server")
