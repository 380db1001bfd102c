"""Slurm scripts: in the shell's eyes, and run with a stand-in for srun, because there is no cluster here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from testbed_plans import CASES, DESCRIPTIONS, golden

from thc_lab.testbed.plan import plan
from thc_lab.testbed.reading import load
from thc_lab.testbed.slurm import batch_script

SCRIPTS = [name for name, format in CASES if format == "sbatch"]
#: Runs the command here: options begin with dashes, and a process starts with what comes then.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
THC_PS = "#!/bin/sh\necho 'thc-ps ready on 10.0.0.10:48865'\necho \"token: $TOKEN\"\necho $$ >{pid}\nexec sleep 60\n"
SECRET = "$(echo not) `this` 'either' \" \\ #x"


@pytest.mark.parametrize("name", SCRIPTS)
def test_bash_can_read_it(name: str) -> None:
    subprocess.run(["bash", "-n", str(golden(name, "sbatch"))], check=True, timeout=60)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not on PATH")
@pytest.mark.parametrize("name", SCRIPTS)
def test_shellcheck_finds_nothing(name: str) -> None:
    command = ["shellcheck", "--shell=bash", str(golden(name, "sbatch"))]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout


def run_script(folder: Path, bpslaunch: str, variables: str = "") -> subprocess.CompletedProcess[str]:
    """Two workers and thc-ps, with these programs in their places; the MTU stays as it is.

    variables: of [training.environment], as TOML.
    """
    programs = {"srun": SRUN, "thc-ps": THC_PS.format(pid=folder / "thc-ps.pid"), "bpslaunch": bpslaunch}
    for program, text in programs.items():
        (folder / program).write_text(text, encoding="utf-8")
        (folder / program).chmod(0o755)
    text = (DESCRIPTIONS / "torchrun.toml").read_text(encoding="utf-8")
    text = text.replace('"torchrun"', '"bpslaunch"').replace("mtu_bytes = 9000", "").replace("gpus = 2", "")
    text = text.replace("[training]", f"[training]\nenvironment = {{ {variables} }}")
    text = text.replace("/srv/training", str(folder)).replace('name = "ddp"', 'name = "script"')
    text = text.replace("workers = 2", "workers = 1").replace('reach = "ssh"', f'reach = "ssh"\nbin = "{folder}"')
    # The folder of a run is short, and on real hosts.
    run_folder = Path("/tmp") / f"thc-slurm-{os.getpid()}"
    text = text.replace(f'bin = "{folder}"', f'bin = "{folder}"\nfolder = "{run_folder}"')
    (folder / "testbed.toml").write_text(text, encoding="utf-8")
    testbed = load(folder / "testbed.toml")
    script = folder / "script.sbatch"
    script.write_text(batch_script(testbed, plan(testbed)), encoding="utf-8")
    slurm = {"SLURM_JOB_NAME": "thc-script", "SLURM_JOB_ID": "7", "PATH": f"{folder}:{os.environ['PATH']}"}
    try:
        return subprocess.run(
            ["bash", str(script)],
            env=os.environ | slurm | {"THC_SERVERS": "10.9.9.9", "BYTEPS_LEFT": "1"},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        shutil.rmtree(run_folder, ignore_errors=True)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_it_ends_with_the_workers(tmp_path: Path) -> None:
    started = "[ -s thc-script-7/scheduler.log ] && [ -s thc-ps.pid ]"  # before the workers end
    others = f"[ $DMLC_ROLE != worker ] || until {started}; do sleep 0.1; done"
    finished = run_script(tmp_path, f'#!/bin/sh\n{others}\necho "$DMLC_ROLE $THC_SERVERS $BYTEPS_LEFT $*"\n')
    assert finished.returncode == 0, finished.stderr
    logs = tmp_path / "thc-script-7"
    assert (logs / "worker0.log").read_text() == "worker 10.0.0.10:48865  python3 train_ddp.py --steps 100\n"
    assert (logs / "scheduler.log").read_text() == "scheduler   \n"
    assert not is_running(int((tmp_path / "thc-ps.pid").read_text()))


def test_a_worker_that_fails_ends_all(tmp_path: Path) -> None:
    bpslaunch = '#!/bin/sh\n[ "$DMLC_WORKER_ID" = 1 ] && exit 3\nexec sleep 60\n'
    finished = run_script(tmp_path, bpslaunch)
    assert finished.returncode == 1
    assert "worker1 ended with exit code 3; logs in " in finished.stderr
    assert not is_running(int((tmp_path / "thc-ps.pid").read_text()))


def test_slurm_s_signal_ends_all_in_time_to_undo(tmp_path: Path) -> None:
    bpslaunch = '#!/bin/sh\n[ "$DMLC_WORKER_ID" = 1 ] && kill -TERM $PPID\nexec sleep 60\n'
    finished = run_script(tmp_path, bpslaunch)
    assert finished.returncode == 143, finished.stderr
    assert not is_running(int((tmp_path / "thc-ps.pid").read_text()))
    # To the script alone: of the processes none ends before it says so.
    assert "\n#SBATCH --signal=B:TERM@" in (tmp_path / "script.sbatch").read_text(encoding="utf-8")


def write_variables(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "thc-script.env"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_workers_have_their_variables_from_a_file(tmp_path: Path) -> None:
    """As they are, in no command line, and nobody else has them."""
    write_variables(tmp_path, f"# made by hand\nTOKEN={SECRET}\nOTHER=1\nEMPTY=\n")
    shown = 'tr "\\0" " " </proc/$PPID/cmdline; tr "\\0" " " </proc/$$/cmdline'
    started = "[ -s thc-script-7/scheduler.log ] && [ -s thc-ps.pid ]"  # before the workers end
    others = f"[ $DMLC_ROLE != worker ] || until {started}; do sleep 0.1; done"
    bpslaunch = f'#!/bin/sh\n{others}\necho "$DMLC_ROLE [$TOKEN] [$OTHER] [${{EMPTY-none}}]"\n{shown}\n'
    finished = run_script(tmp_path, bpslaunch, "TOKEN = 'elsewhere', EMPTY = 'x'")
    assert finished.returncode == 0, finished.stderr
    logs = tmp_path / "thc-script-7"
    for name in ("worker0", "worker1"):
        first, *rest = (logs / f"{name}.log").read_text().splitlines()
        assert first == f"worker [{SECRET}] [] []"
        assert "bpslaunch" in "".join(rest)
        assert SECRET not in "".join(rest)
    assert (logs / "scheduler.log").read_text().startswith("scheduler [] [] [none]\n")
    assert "token: \n" in (logs / "thc-ps0.log").read_text()
    assert "elsewhere" not in (tmp_path / "script.sbatch").read_text(encoding="utf-8")


def test_a_file_of_variables_is_this_user_s_alone(tmp_path: Path) -> None:
    finished = run_script(tmp_path, "#!/bin/sh\n", "TOKEN = 'x'")
    assert finished.returncode == 1
    assert f"the workers' variables are not in {tmp_path}/thc-script.env" in finished.stderr
    for text, mode, message in (
        ("TOKEN=x\n", 0o640, "another user's, or not of mode 600"),
        ("TOKEN=x\n", 0o604, "another user's, or not of mode 600"),
        ("TOKENS=x\n", 0o600, "one line for each of: TOKEN"),
        ("TOKEN=x\nTOKEN=y\n", 0o600, "one line for each of: TOKEN"),
    ):
        write_variables(tmp_path, text, mode)
        finished = run_script(tmp_path, "#!/bin/sh\n", "TOKEN = 'x'")
        assert finished.returncode == 1
        assert message in finished.stderr
    assert not (tmp_path / "thc-ps.pid").exists()
