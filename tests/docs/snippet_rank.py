"""One rank that runs scripts of the documents one after another, each as __main__ with torchrun's variables.

settings["package"]: where byteps_thc must come from. settings["scripts"]: name -> file. Reports name -> printed text of
the scripts that averaged.
"""

import io
import os
import runpy
import time
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore

import byteps_thc
from thc_lab.ranks import Rank, joined_rank

HANDLES = ("state", "compression", "reducer")


def join_store(rank: Rank, name: str) -> TCPStore | None:
    """Do as torchrun's agent: a store on a free port, which the script's init_process_group() finds."""
    file, store = rank.directory / f"{name}.port", None
    if rank.rank == 0:
        store = TCPStore("127.0.0.1", 0, rank.ranks, is_master=True, wait_for_workers=False)
        file.with_suffix(".new").write_text(str(store.port), encoding="utf-8")
        file.with_suffix(".new").rename(file)
    deadline = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < deadline, f"rank 0 did not get to {name}"
        time.sleep(0.01)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": file.read_text(encoding="utf-8"),
        "RANK": str(rank.rank),
        "WORLD_SIZE": str(rank.ranks),
        "LOCAL_RANK": str(rank.rank),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    return store


def check_same(average: torch.Tensor) -> None:
    largest, smallest = average.clone(), average.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    assert torch.equal(largest, smallest)
    assert largest.any()


def check(script: str, text: str, names: dict[str, Any]) -> int:
    """How many handles have compressed; all ranks must have the same gradients."""
    if "ddp" in names or "reducer" in names:
        parameters = [*names.get("ddp", names.get("model")).parameters()]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        assert gradients or "zero_grad()" in text, script
        for gradient in gradients:
            check_same(gradient)
    handles = [names[name] for name in HANDLES if name in names]
    for handle in handles:
        stats = handle.compression_stats()
        assert stats.coordinates > 0, script
        assert stats.ratio > (1 if "warmup_steps" in text else 4), script
        handle.close()
    return len(handles)


warnings.simplefilter("error")
warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
with joined_rank() as rank:
    pass  # only who this is: each script has a group of its own
assert byteps_thc.__file__.startswith(rank.settings["package"])
printed: dict[str, str] = {}
for name, file in rank.settings["scripts"].items():
    store = join_store(rank, name)
    folder = rank.directory / name
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    torch.manual_seed(rank.rank)
    with redirect_stdout(io.StringIO()) as output:
        names = runpy.run_path(str(Path(file)), run_name="__main__")
    if check(name, Path(file).read_text(encoding="utf-8"), names):
        printed[name] = output.getvalue()
    dist.destroy_process_group()
    del store
rank.report(printed)
