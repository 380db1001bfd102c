"""scripts/switch.sh: its steps, and its errors about missing programs."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from thc_switch import Deployment, plan
from thc_switch.targets import bfshell

SCRIPT = Path(__file__).resolve().parents[3] / "scripts/switch.sh"
EXAMPLE = Path(__file__).resolve().parents[3] / "p4" / "jobs.example.toml"
STEPS = ("compile", "load", "install", "start", "status")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A machine without SDE; `thc` is the command of this Python."""
    thc = tmp_path / "thc"
    thc.write_text(f'#!/bin/sh\nexec {sys.executable} -P -c "from byteps_thc._cli.cli import app; app()" "$@"\n')
    thc.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in ("SDE", "SDE_INSTALL", "P4C")}
    return kept | {"THC": str(thc), "THC_SWITCH_STATE": str(tmp_path / "state")}


def script(name: str, *arguments: str | Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [str(SCRIPT), name, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)


@pytest.fixture
def sde(environment: dict[str, str], tmp_path: Path) -> Iterator[dict[str, str]]:
    """An SDE whose bfshell says that scripts end well, and a `thc` whose agent waits and names its PYTHONPATH."""
    sde = tmp_path / "sde"
    (sde / "bin").mkdir(parents=True)
    (sde / "lib/python3.11/site-packages/tofino").mkdir(parents=True)
    bfshell_tool = sde / "bin/bfshell"
    bfshell_tool.write_text(f"#!/bin/sh\necho '{bfshell.DONE}'\n")
    bfshell_tool.chmod(0o755)
    thc = tmp_path / "serving_thc"
    thc.write_text(
        '#!/bin/sh\n[ "$2" != serve ] || { echo "agent ready, $PYTHONPATH"; exec sleep 60; }\n'
        f'exec {environment["THC"]} "$@"\n'
    )
    thc.chmod(0o755)
    env = environment | {"SDE_INSTALL": str(sde), "THC": str(thc)}
    yield env
    script("teardown", EXAMPLE, env=env)


def test_a_changed_description_gets_another_agent(sde: dict[str, str], tmp_path: Path) -> None:
    jobs, state = tmp_path / "jobs.toml", tmp_path / "state"
    jobs.write_text(EXAMPLE.read_text())
    first = script("start", jobs, env=sde)
    assert first.returncode == 0, first.stderr
    assert "site-packages/tofino" in (state / "agent.log").read_text(), "where bfrt_grpc is"
    pid_file = state / "agent.pid"
    before = pid_file.read_text()
    assert "agent runs (process" in script("start", jobs, env=sde).stdout
    assert pid_file.read_text() == before
    jobs.write_text(EXAMPLE.read_text() + "# changed\n")
    assert script("start", jobs, env=sde).returncode == 0
    assert pid_file.read_text() not in ("", before)
    assert script("install", jobs, env=sde).returncode == 0
    assert not pid_file.exists(), "an agent of another description must not answer while tables are filled"


def test_a_process_that_ends_is_not_waited_for(sde: dict[str, str], tmp_path: Path) -> None:
    broken = tmp_path / "broken_thc"
    broken.write_text("#!/bin/sh\necho no such interface\nexit 1\n")
    broken.chmod(0o755)
    result = script("start", EXAMPLE, env=sde | {"THC": str(broken)})
    assert result.returncode == 1
    assert "no such interface\nswitch.sh: agent ended" in result.stderr


def test_the_pid_of_another_process_is_not_ours(environment: dict[str, str], tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            (state / "agent.pid").write_text(f"{other.pid}\n")
            assert "agent does not run" in script("teardown", EXAMPLE, env=environment).stdout
            assert other.poll() is None
        finally:
            other.kill()


@pytest.mark.parametrize("sde", [{}, {"SDE": "/opt/sde"}], ids=str)
def test_deploy_does_every_step_in_order(sde: dict[str, str], environment: dict[str, str], tmp_path: Path) -> None:
    result = script("deploy", EXAMPLE, "--dry-run", env=environment | sde)
    assert result.returncode == 0, result.stderr
    titles = [line.removeprefix("== ") for line in result.stdout.splitlines() if line.startswith("== ")]
    assert tuple(titles) == STEPS
    assert " --target tofino --arch tna" in result.stdout
    if not sde:  # a dry run needs none
        assert "SDE_INSTALL/bin/bf_switchd --install-dir SDE_INSTALL" in result.stdout
    assert not (tmp_path / "state").exists(), "a dry run leaves nothing behind"


def test_compile_and_load(environment: dict[str, str], tmp_path: Path) -> None:
    env = environment | {"SDE_INSTALL": "/opt/sde/install"}
    (compiler,) = (
        shlex.split(line)
        for line in script("compile", EXAMPLE, "--dry-run", env=env).stdout.splitlines()
        if "p4c" in line
    )
    source = Path(__file__).parents[3] / "p4/programs/tna/thc_tna.p4"
    out = tmp_path / "state" / "tofino"
    assert compiler == [
        "/opt/sde/install/bin/bf-p4c",
        *("--target", "tofino", "--arch", "tna"),
        *("-o", str(out), str(source)),
    ]
    assert source.is_file()
    for state, folder in ((str(tmp_path / "state"), out), ("state", Path("state/tofino").resolve())):
        load = shlex.split(script("load", EXAMPLE, "--dry-run", env=env | {"THC_SWITCH_STATE": state}).stdout)
        assert load[0] == "/opt/sde/install/bin/bf_switchd"
        assert load[load.index("--conf-file") + 1] == str(folder / "thc_tna.conf")
        assert "--server-listen-local-only" in load


def test_tofino_2(environment: dict[str, str], tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(EXAMPLE.read_text().replace('"tofino1"', '"tofino2"'))
    output = script("compile", jobs, "--dry-run", env=environment | {"P4C": "p4c"}).stdout
    assert "--target tofino2 --arch t2na -DTHC_TOFINO2" in output
    assert " -Xp4c=--no-clot " in output, "bfas needs it (p4/README.md)"


def test_the_whole_plan_is_installed(environment: dict[str, str]) -> None:
    deployment = Deployment.load(EXAMPLE)
    result = script("install", EXAMPLE, "--dry-run", env=environment)
    assert result.stdout == bfshell.script(plan(deployment).operations(), deployment.switch)


def test_start_and_teardown(environment: dict[str, str]) -> None:
    started = script("start", EXAMPLE, "--dry-run", env=environment | {"SDE_INSTALL": "/opt/sde/install"})
    assert "switch serve" in started.stdout
    result = script("teardown", EXAMPLE, "--dry-run", env=environment)
    assert result.returncode == 0
    assert "agent does not run\n" in result.stdout


def test_teardown_stops_what_runs_and_may_be_repeated(sde: dict[str, str], tmp_path: Path) -> None:
    assert script("start", EXAMPLE, env=sde).returncode == 0
    pid_file = tmp_path / "state/agent.pid"
    process = Path("/proc", pid_file.read_text().strip())
    assert f"kill {process.name}" in script("teardown", EXAMPLE, "--dry-run", env=sde).stdout
    assert process.exists()
    assert script("teardown", EXAMPLE, env=sde).returncode == 0
    with suppress(FileNotFoundError, ProcessLookupError):  # gone
        assert not (process / "cmdline").read_bytes(), "at most a zombie of init"
    assert not pid_file.exists()
    assert "agent does not run" in script("teardown", EXAMPLE, env=sde).stdout


def test_teardown_by_a_user_who_may_not_stop_the_agent_ends_at_once(sde: dict[str, str], tmp_path: Path) -> None:
    assert script("start", EXAMPLE, env=sde).returncode == 0
    refused = tmp_path / "refused.sh"
    refused.write_text("kill() { return 1; }\n")
    result = script("teardown", EXAMPLE, env=sde | {"BASH_ENV": str(refused)})
    assert result.returncode == 1
    assert "switch.sh: agent cannot be stopped by this user: run it as root" in result.stderr
    assert (tmp_path / "state/agent.pid").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("compile", "no P4 compiler: set SDE_INSTALL (bf-p4c), or P4C"),
        ("load", "set SDE or SDE_INSTALL"),
        ("install", "bfshell not found: set SDE"),
        ("status", "bfshell not found: set SDE"),
    ],
)
def test_what_is_missing_is_named(name: str, message: str, environment: dict[str, str], tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "sh", "dirname", "env", "rm", "mkdir", "find", "pgrep", "sed", "cat", "realpath", "cut"):
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    result = script(name, EXAMPLE, env=environment | {"PATH": str(tools)})
    assert result.returncode == 1
    assert message in result.stderr


def test_compile_again_does_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    compiled = tmp_path / "state" / "tofino"
    compiled.mkdir(parents=True)
    (compiled / "thc_tna.conf").touch()
    result = script("compile", EXAMPLE, env=environment | {"P4C": "false"})
    assert result.returncode == 0
    assert "compiled already" in result.stdout


def test_bmv2_is_not_deployed_by_scripts(environment: dict[str, str], tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(EXAMPLE.read_text().replace('"tofino1"', '"v1model"'))
    result = script("deploy", jobs, "--dry-run", env=environment)
    assert result.returncode == 1
    assert "these scripts are for Tofino" in result.stderr


@pytest.mark.parametrize("name", [*STEPS, "deploy", "teardown"])
def test_usage(name: str, environment: dict[str, str]) -> None:
    assert f"\n  {name} " in script(name, "--help", env=environment).stdout
    assert "which job description?" in script(name, env=environment).stderr
    assert "unknown option --dry" in script(name, EXAMPLE, "--dry", env=environment).stderr


def test_a_step_that_does_not_exist(environment: dict[str, str]) -> None:
    assert "which step? compile, load, " in script("ports", EXAMPLE, env=environment).stderr
