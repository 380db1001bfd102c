"""Run an installed byteps_thc as a user would: imports, thc, an average through thc-ps, DDP if torch is installed.

Usage: PYTHON -P try_wheel.py VERSION, by the Python of the environment that the wheel is installed in.
"""

import importlib.util
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

LIMIT_S = 600  # importing torch takes minutes on a busy host
DDP = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from byteps_thc.ddp import compress

dist.init_process_group("gloo")
torch.manual_seed(1)
ddp = DistributedDataParallel(nn.Linear(300, 300))
state = compress(ddp)
torch.manual_seed(2 + dist.get_rank())
ddp(torch.randn(8, 300)).square().mean().backward()
average = ddp.module.weight.grad
assert average.abs().sum() > 0
of_rank_0 = average.clone()
dist.broadcast(of_rank_0, 0)
assert torch.equal(average, of_rank_0), "ranks have other averages"
assert state.compression_stats().ratio > 1, state.compression_stats()
dist.destroy_process_group()
"""


def main() -> None:
    (version,) = sys.argv[1:]
    _is_installed(version)
    _commands_run(version)
    _averages_through_thc_ps()
    _dpdk_says_how_to_build_it()
    done = "imports, thc, an average through thc-ps"
    if importlib.util.find_spec("torch") is None:
        print(f"release: ran {done}; no torch here, so no DDP")
        return
    _two_ranks_average()
    print(f"release: ran {done}, DDP with two ranks")


def _is_installed(version: str) -> None:
    import byteps_thc

    assert byteps_thc.__version__ == version, f"byteps_thc.__version__ is {byteps_thc.__version__}, not {version}"
    assert Path(byteps_thc.__file__).is_relative_to(sys.prefix), f"{byteps_thc.__file__} is not in {sys.prefix}"


def _commands_run(version: str) -> None:
    assert "compare" in _output(Path(sys.executable).parent / "thc", "--help")
    assert _output(Path(sys.executable).parent / "thc-ps", "--version").split() == ["thc-ps", version]


def _averages_through_thc_ps() -> None:
    import numpy as np

    from byteps_thc import Compressor, GradientAverager, ServerCodes, Session
    from byteps_thc._cli.launch import ParameterServer

    config = ServerCodes()
    gradients = [np.random.default_rng(worker).normal(size=100_000).astype(np.float32) for worker in range(2)]
    exact = (gradients[0] + gradients[1]) / 2

    def work(worker: int, server: str) -> None:
        with Session([server], job=1, run="wheel", worker=worker, workers=2, codes=config) as session:
            averager = GradientAverager(session, Compressor(config, workers=2, worker=worker))
            averager.average({"gradient": gradients[worker]})

    with ParameterServer() as server:
        threads = [threading.Thread(target=work, args=(worker, server.address)) for worker in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert np.array_equal(*gradients), "workers have other averages"
    error = float(np.linalg.norm(gradients[0] - exact) / np.linalg.norm(exact))
    assert error < 0.3, f"the average is {error:.2f} off"


def _dpdk_says_how_to_build_it() -> None:
    """Released wheels lack DPDK: they would depend on one distribution's versions of its libraries."""
    from byteps_thc import DpdkConfig, ServerCodes, Session
    from byteps_thc._base.errors import DpdkUnavailableError

    said = None
    try:
        Session(["10.0.0.1"], job=1, worker=0, workers=1, codes=ServerCodes(), backend=DpdkConfig("10.0.0.2"))
    except DpdkUnavailableError as error:
        said = str(error)
    assert said is not None, "a released wheel has DPDK"
    assert "sdist" in said, said


def _two_ranks_average() -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "step.py")
        script.write_text(DDP, encoding="utf-8")
        _output(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script))


def _output(*command: str | Path) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd="/")
    if result.returncode != 0:
        raise SystemExit(f"{command} failed ({result.returncode}):\n{result.stdout}{result.stderr}")
    return result.stdout


if __name__ == "__main__":
    main()
