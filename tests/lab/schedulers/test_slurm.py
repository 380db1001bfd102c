"""Slurm scripts of docs/examples on a real slurmctld and slurmd: one host, two tasks, all on loopback."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs/examples"
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "munged")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]
DEADLINE_S = 400.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: apt-get install slurm-wlm munge"),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd needs root"),
]

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 NodeHostname={host} CPUs=4 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def started(*command: str) -> Iterator[None]:
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the daemons' files; SLURM_CONF names their configuration."""
    folder = tmp_path / "slurm"
    for path in (folder, folder / "state", folder / "spool"):
        path.mkdir(mode=0o755)
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    text = CONFIGURATION.format(folder=folder, host=host, controller=free_port(), daemon=free_port())
    (folder / "slurm.conf").write_text(text, encoding="utf-8")
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    files = ("key-file", "socket", "pid-file", "log-file", "seed-file")
    munge = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in files]
    with (
        started("munged", "--foreground", "--force", *munge),
        started("slurmctld", "-D", "-i", "-f", str(folder / "slurm.conf")),
        started("slurmd", "-D", "-f", str(folder / "slurm.conf"), "-N", host),
    ):
        deadline = time.monotonic() + 60
        while "idle" not in (state := _output("sinfo", "--noheader", "--format=%t")):
            assert time.monotonic() < deadline, state + _logs(folder)
            time.sleep(0.5)
        yield folder


def run_job(script: str, folder: Path, cluster: Path, status: int = 0, **variables: str) -> str:
    """Submit a script for two tasks on this host, which ends with a status, and return its output."""
    variables |= {"VENV": sys.prefix, "ADDRESS": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    path = folder / "script"
    path.write_text(script, encoding="utf-8")
    options = ["--nodes=1", "--ntasks-per-node=2", f"--output={folder}/output", f"--chdir={ROOT}", "--wait"]
    command, environment = ["sbatch", *options, str(path)], os.environ | variables
    submitted = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    output = (folder / "output").read_text() if (folder / "output").exists() else ""
    assert submitted.returncode == status, submitted.stdout + submitted.stderr + output + _logs(cluster)
    # Nothing of the job is left.
    assert _output("squeue", "--noheader") == ""
    return output


def test_two_tasks_train_through_thc_ps(cluster: Path, tmp_path: Path) -> None:
    ports = {"MASTER_PORT": str(free_port()), "PORT": str(free_port(socket.SOCK_DGRAM))}
    script = (EXAMPLES / "slurm.sbatch").read_text(encoding="utf-8")
    output = run_job(script, tmp_path, cluster, STEPS="20", **ports)
    losses = [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", output)]
    assert len(losses) == 3, output
    assert losses[-1] < losses[0]
    assert "thc-ps ready on 127.0.0.1:" in output


def test_two_tasks_accept_gpus_on_gloo(cluster: Path, tmp_path: Path) -> None:
    """The cluster of the tests has no GPU to ask for, so the doctor fails."""
    script = (EXAMPLES / "gpu_acceptance.sbatch").read_text(encoding="utf-8")
    bare = script.replace("#SBATCH --gpus-per-node=8\n", "")
    assert bare != script
    output = run_job(bare, tmp_path, cluster, status=1, STEPS="40", RANKS="1", PORT=str(free_port()))
    assert "doctor --device\n" in output
    assert output.endswith("all is well\n--- exit code 0\n"), output


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() + done.stderr.strip()


def _logs(folder: Path) -> str:
    return "".join(f"\n{path.name}:\n{path.read_text(errors='replace')[-3000:]}" for path in folder.glob("*.log"))
