"""The examples for frameworks run with the frameworks themselves, and resume from their checkpoints.

docs/examples/requirements.txt says which; they are installed into an environment of their own (framework_environment).
"""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from framework_environment import ROOT, framework_python
from free_ports import free_tcp_port

EXAMPLES = ROOT / "docs/examples"
#: Each example's checkpoint of step 10.
CHECKPOINTS = {
    "train_accelerate.py": "10",
    "train_lightning.py": "step=10.ckpt",
    "train_trainer.py": "checkpoint-10",
    "train_torchtitan.py": "10",
}
OPTIONS = ["--steps", "20", "--batch-size", "4"]
#: Enough steps: a replica starts in less time than another one trains alone to its end.
TORCHFT_STEPS = 1000
TIMEOUT_S = 300
#: the limit of a test, of which the first one installs the frameworks
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def python() -> Path:
    return framework_python()


class Running:
    """A program that runs; its output is in a file."""

    def __init__(self, command: Sequence[str], log: Path, **environment: str) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"} | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self) -> str:
        """Its output, when it has ended without an error."""
        status = self.process.wait(TIMEOUT_S)
        assert status == 0, self.output()
        return self.output()

    def wait_for(self, pattern: str) -> None:
        """Wait until it has printed that."""
        deadline = time.monotonic() + TIMEOUT_S
        while not re.search(pattern, self.output()):
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.1)

    def kill(self) -> None:
        for pid in [self.process.pid, *descendants(self.process.pid)]:  # torchrun's ranks have sessions of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def descendants(pid: int) -> list[int]:
    """Children of a process, and theirs."""
    children: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += map(int, file.read_text(encoding="ascii").split())
    return [each for child in children for each in (child, *descendants(child))]


@contextmanager
def running(command: Sequence[str], log: Path, **environment: str) -> Iterator[Running]:
    program = Running(command, log, **environment)
    try:
        yield program
    finally:
        program.kill()


def torchrun(python: Path, *arguments: str | Path) -> list[str]:
    return [str(python), "-P", "-m", "torch.distributed.run", *map(str, arguments)]


def on_two_ranks(python: Path, name: str, log: Path, *options: str | Path) -> str:
    """Return the output of an example."""
    command = torchrun(python, "--standalone", "--nproc-per-node", "2", EXAMPLES / name, *OPTIONS, *options)
    with running(command, log) as program:
        return program.wait()


def losses_in(output: str) -> dict[int, str]:
    """Losses as they are printed, by step."""
    return {int(step): loss for step, loss in re.findall(r"step (\d+): loss ([\d.]+)", output)}


def assert_learned(output: str) -> None:
    losses = {step: float(loss) for step, loss in losses_in(output).items()}
    assert losses[1] > 4
    assert losses[20] < losses[1] - 0.5


def assert_compressed(output: str) -> None:
    [ratio] = re.findall(r"step \d+: ratio ([\d.]+) to fp32", output)
    assert float(ratio) > 5


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_resumed_run_repeats_the_other_one(name: str, python: Path, tmp_path: Path) -> None:
    """To the last digit printed: parameters, the state of optimizer and compression, and data are step 10's."""
    checkpoints = tmp_path / "checkpoints"
    options = ["--save-every", "10", "--checkpoints", checkpoints]
    whole = on_two_ranks(python, name, tmp_path / "whole.log", *options)
    assert_learned(whole)
    assert_compressed(whole)
    resumed = on_two_ranks(
        python, name, tmp_path / "resumed.log", *options, "--resume", checkpoints / CHECKPOINTS[name]
    )
    assert losses_in(resumed) == {20: losses_in(whole)[20]}
    assert_compressed(resumed)


def test_elastic_goes_on_with_fewer_ranks(python: Path, tmp_path: Path) -> None:
    """One of two agents, with its rank, is killed: the other starts its rank again, alone, from the checkpoint."""
    options = [*OPTIONS, "--save-every", "5", "--checkpoints", str(tmp_path / "checkpoints")]
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_tcp_port()}", "--rdzv-id", "elastic"]
    limits = [
        "--rdzv-conf",
        "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3",
        "--monitor-interval",
        "1",
    ]
    command = torchrun(python, "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3", *rendezvous, *limits)
    command += [str(EXAMPLES / "train_elastic.py"), *options]
    environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with running(command, tmp_path / "first.log", **environment) as first:
        time.sleep(2)  # it has the rendezvous
        with running(command, tmp_path / "second.log", **environment) as second:
            while not (tmp_path / "checkpoints/10/.metadata").exists():
                for agent in (first, second):
                    assert agent.process.poll() is None, agent.output()
                time.sleep(0.05)
            second.kill()
        output = first.wait()
    begun = re.findall(r"(\d) ranks begin after step (\d+)", first.output() + second.output())
    assert begun[0] == ("2", "0") or begun[-1] == ("2", "0"), begun
    assert ("1", "10") in begun or ("1", "15") in begun, begun
    assert losses_in(output)[20]


def test_torchft_averages_outer_gradients_and_takes_a_replica_back(python: Path, tmp_path: Path) -> None:
    """A replica is killed, the other trains alone, and both end with the same parameters when it has come back."""
    lighthouse = f"http://127.0.0.1:{(port := free_tcp_port())}"
    command = [str(python.with_name("torchft_lighthouse")), "--min_replicas", "1", "--join_timeout_ms", "5000"]

    def replica(number: int, log: str) -> contextlib.AbstractContextManager[Running]:
        options = ["--replica", str(number), "--steps", str(TORCHFT_STEPS), "--batch-size", "1", "--inner-steps", "5"]
        arguments = ["--standalone", "--nproc-per-node", "1", EXAMPLES / "diloco_torchft.py", *options]
        return running(torchrun(python, *arguments), tmp_path / log, TORCHFT_LIGHTHOUSE=lighthouse)

    with running([*command, "--bind", f"[::]:{port}"], tmp_path / "lighthouse.log"), replica(0, "0.log") as first:
        with replica(1, "1.log") as second:
            first.wait_for(r"step \d+: .* 2 replicas")
            second.kill()
        first.wait_for(r"(?s) 2 replicas\n.* 1 replicas\n")  # not of the steps before the second one came
        with replica(1, "again.log") as second:
            outputs = [first.wait(), second.wait()]
    for output in outputs:
        assert re.findall(rf"step {TORCHFT_STEPS}: .* (\d) replicas", output) == ["2"]
    assert re.findall(r"parameters (\w+)", outputs[0]) == re.findall(r"parameters (\w+)", outputs[1]) != []
    assert_compressed(outputs[0])


WANDB = """
import wandb
from byteps_thc import CompressionStats

run = wandb.init(mode="offline", project="test")
for step, ratio in ((10, 7.25), (20, 8.75)):
    run.log(CompressionStats(steps=step, ratio=ratio).as_dict(), step=step)
run.finish()
"""


def test_wandb_takes_the_figures(python: Path, tmp_path: Path) -> None:
    """The file that it would send has two steps of averages."""
    folders = {f"WANDB_{name}_DIR": str(tmp_path) for name in ("CACHE", "CONFIG", "DATA")}
    environment = {"WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true", **folders}
    with running([str(python), "-P", "-c", WANDB], tmp_path / "log", **environment) as program:
        program.wait()
    [file] = [path for path in tmp_path.rglob("*.wandb") if not path.parent.is_symlink()]
    written = file.read_bytes()
    ratios = re.findall(rb"ratio[^0-9a-z_]{1,8}([0-9.]+)", written, flags=re.DOTALL)
    assert [*dict.fromkeys(ratios)] == [b"7.25", b"8.75"]
