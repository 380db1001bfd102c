"""Every example runs, learns, and differs from the one-process script in few lines.

torchrun starts one of them (and the README's snippet, tests/docs); the others are forked with its variables.
"""

import contextlib
import difflib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from byteps_lab import BytepsLab
from torch.distributed import TCPStore

from byteps_thc._cli.launch import ParameterServer
from thc_lab.fork_server import start_program

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
#: The training of the examples in one process.
SINGLE = Path(__file__).with_name("train_single.py")
OPTIONS = ["--steps", "20", "--batch-size", "4"]
TIMEOUT_S = 100
TORCHRUN = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
#: changed or added lines: imports, launch, and the plug-in itself
MOST_LINES = {"train_ddp.py": 10, "train_fsdp.py": 13, "train_byteps.py": 8}
#: another algorithm, with more lines of its own; and the training of the examples for Slurm and Kubernetes
OTHERS = ["diloco.py", "train_servers.py"]
#: those for frameworks: test_frameworks.py
FRAMEWORKS = [
    "train_accelerate.py",
    "train_lightning.py",
    "train_trainer.py",
    "train_torchtitan.py",
    "train_elastic.py",
    "diloco_torchft.py",
]


def code_lines(program: Path) -> list[str]:
    """Lines of an example without its docstring."""
    return program.read_text(encoding="utf-8").split('"""', 2)[2].splitlines()


def run_example(*command: str) -> str:
    """Return the output of an example."""
    running = subprocess.Popen(
        [*command, *OPTIONS],
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that torchrun's children end with it
    )
    try:
        output, _ = running.communicate(timeout=TIMEOUT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    assert running.returncode == 0, output
    return output


def losses_in(output: str) -> list[tuple[int, float]]:
    """Steps and losses in the output of an example."""
    return [(int(step), float(loss)) for step, loss in re.findall(r"step (\d+): loss ([\d.]+)", output)]


def assert_learned(output: str) -> None:
    losses = losses_in(output)
    assert [step for step, _ in losses] == [1, 10, 20]
    first, last = losses[0][1], losses[-1][1]
    assert first > 4  # log(97 characters) is 4.57
    assert last < first - 0.5


@pytest.mark.parametrize("name", MOST_LINES)
def test_example_differs_from_the_one_process_script_in_few_lines(name: str) -> None:
    changes = list(difflib.ndiff(code_lines(SINGLE), code_lines(EXAMPLES / name)))
    added = [line for line in changes if line.startswith("+ ") and line.strip() != "+"]
    removed = [line for line in changes if line.startswith("- ") and line.strip() != "-"]
    assert 0 < len(added) <= MOST_LINES[name], "\n".join(added)
    assert len(removed) <= 2, "\n".join(removed)


def test_every_example_is_known_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*MOST_LINES, *OTHERS, *FRAMEWORKS}


def test_single_process() -> None:
    assert_learned(run_example(sys.executable, "-P", str(SINGLE)))


def run_on_two_ranks(name: str, folder: Path, options: Sequence[str] = OPTIONS) -> str:
    """Return the outputs of an example's two ranks, started as torchrun starts them."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # as torchrun's agent has one
    launch = {
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    logs = [folder / f"rank{rank}.log" for rank in range(2)]
    ranks = [
        start_program(
            EXAMPLES / name,
            *options,
            environment=os.environ | launch | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            log=log,
        )
        for rank, log in enumerate(logs)
    ]
    try:
        statuses = [rank.wait(TIMEOUT_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    output = "".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)
    assert statuses == [0, 0], output
    return output


def test_ddp_with_torchrun() -> None:
    assert_learned(run_example(*TORCHRUN, str(EXAMPLES / "train_ddp.py")))


def test_fsdp(tmp_path: Path) -> None:
    assert_learned(run_on_two_ranks("train_fsdp.py", tmp_path))


def test_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ParameterServer() as server:
        monkeypatch.setenv("THC_SERVERS", server.address)
        output = run_on_two_ranks("train_servers.py", tmp_path, ["--steps", "20"])
    losses = [loss for _, loss in losses_in(output)]
    assert len(losses) == 3
    assert losses[-1] < losses[0] / 2


def test_diloco(tmp_path: Path) -> None:
    """It checks itself that the ranks end with the same parameters."""
    output = run_on_two_ranks("diloco.py", tmp_path)
    assert_learned(output)
    bytes_ = re.search(r"sent ([\d.]+) MB in 2 outer steps; uncompressed outer gradients: ([\d.]+) MB", output)
    assert bytes_ is not None
    assert float(bytes_[2]) > 5.6 * float(bytes_[1])  # 11 bits in place of 64, and uncompressed parameters


@pytest.mark.byteps
@pytest.mark.parametrize("route", ["network", "servers"])
def test_bpslaunch(route: str, tmp_path: Path, thc_ps: ParameterServer) -> None:
    environment = {"THC_ROUTE": route, "THC_SERVERS": thc_ps.address}
    with BytepsLab(tmp_path, workers=2, environment=environment) as lab:
        lab.start(EXAMPLES / "train_byteps.py", *OPTIONS)
        first, second = lab.wait(TIMEOUT_S)
        assert (first.status, second.status) == (0, 0), lab.outputs()
        lab.wait_servers()
    assert_learned(first.output)


@pytest.mark.parametrize("failing", ["doctor", "gpu_acceptance.py", ""])
def test_acceptance_of_gpus_fails_with_any_of_its_parts(failing: str, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    programs = {
        "scontrol": "echo here",
        "nvidia-smi": "",
        "srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"',
        "torchrun": f'[[ -z "{failing}" || "$*" != *"{failing}"* ]]',
    }
    for name, text in programs.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/usr/bin/env bash\n{text}\n", encoding="utf-8")
        path.chmod(0o755)
    slurm = {f"SLURM_{name}": "1" for name in ("JOB_NODELIST", "JOB_ID", "NTASKS", "PROCID")}
    own = {"VENV": str(tmp_path), "ADDRESS": "127.0.0.1", "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    script = EXAMPLES / "gpu_acceptance.sbatch"
    done = subprocess.run(["bash", script], env=os.environ | slurm | own, capture_output=True, text=True, check=False)
    assert done.returncode == bool(failing), done.stdout + done.stderr
    assert done.stdout.count("--- exit code ") == 2
