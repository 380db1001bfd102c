"""The control plane on a host without the P4 model, and where it finds the P4 sources."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from doctor_host import without_modules

from thc_switch import programs

CHECKOUT = Path(__file__).resolve().parents[3]
EXAMPLE = CHECKOUT / "p4" / "jobs.example.toml"


def packages_of(code: str, *arguments: str) -> set[str]:
    """Packages imported by a program in an interpreter of its own."""
    command = [sys.executable, "-P", "-c", f"{code}\nimport sys; print(*sys.modules)", *arguments]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return {name.partition(".")[0] for name in output.splitlines()[-1].split()}


COMMAND = (
    "import sys; from typer.testing import CliRunner; from byteps_thc._cli.cli import app; "
    "result = CliRunner().invoke(app, ['switch', *sys.argv[1:]]); assert result.exit_code == {exit_code}, result.output"
)


@pytest.mark.parametrize(
    ("reached_by", "architecture"), [("grpc", "tofino1"), ("bfshell", "tofino2"), ("bmv2", "v1model")]
)
def test_only_the_target_model_needs_the_model(reached_by: str, architecture: str, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.toml"
    text = EXAMPLE.read_text().replace('"tofino1"', f'"{architecture}"')
    jobs.write_text(text.replace("control_address", "#") if reached_by == "bmv2" else text)
    planned = [["plan", str(jobs), "--target", reached_by]]
    # Without a switch these end at the client library of the SDE.
    reached = [[command, str(EXAMPLE), "--target", "grpc"] for command in ("install", "status", "serve")]
    for arguments in [*planned, *(reached if reached_by == "grpc" else [])]:
        packages = packages_of(COMMAND.format(exit_code=int(arguments in reached)), *arguments)
        assert "thc_switch" in packages
        assert not packages & {"thc_p4_model", "lark"}


@pytest.mark.parametrize("command", [["install"], ["run", "--port", "1=lo"]], ids=" ".join)
def test_without_the_model_the_error_says_what_to_install(command: list[str], tmp_path: Path) -> None:
    thc = [sys.executable, "-P", "-m", "byteps_thc", "switch", command[0], str(EXAMPLE), "--target", "model"]
    environment = os.environ | without_modules(tmp_path, "thc_p4_model")
    result = subprocess.run(
        [*thc, *command[1:]], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("thc: the P4 model is not installed (")
    assert line.endswith(": in a clone of byteps_thc, pip install ./p4/thc_p4_model")


def test_an_installed_package_brings_the_p4_sources() -> None:
    for program in ("v1model", "tna"):
        assert programs.program_path(program).is_file()
    sources = {path.relative_to(programs.directory()) for path in programs.directory().rglob("*.p4")}
    assert sources == {path.relative_to(CHECKOUT / "p4/programs") for path in (CHECKOUT / "p4/programs").rglob("*.p4")}


def test_a_checkout_has_the_p4_sources_beside_the_package() -> None:
    code = "from thc_switch.programs import directory, program_path; print(directory(), program_path('tna').is_file())"
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT / "p4")}
    command = [sys.executable, "-P", "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment).stdout
    assert found.split() == [str(CHECKOUT / "p4" / "programs"), "True"]
