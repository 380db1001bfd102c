"""One rank that runs snippets of the documents, case by case, and trains with what they made.

settings["cases"]: name -> list of snippets, which share their names. settings["package"]: where byteps_thc must come
from. Reports the names of what it trained.
"""

import os
import warnings
from typing import Any

import torch
import torch.distributed as dist
from ranks import Rank, joined_rank
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import byteps_thc
from byteps_thc.tools.demo.data import BatchSampler, load_corpus
from byteps_thc.tools.demo.model import Gpt, GptShape, loss_of

#: The launcher of the tests has made the process group.
JOIN = 'dist.init_process_group("gloo")'


def names_before(rank: Rank, case: str) -> dict[str, Any]:
    """What the documents take for granted."""
    torch.manual_seed(0)
    return {
        "model": Gpt(GptShape(layers=1)),
        "DistributedDataParallel": DistributedDataParallel,
        "fully_shard": fully_shard,
        "nodes": rank.ranks,
        "ranks_per_node": 1,
        "path": str(rank.directory / case.replace(" ", "_")),
        "step": 1,
    }


def train_one_step(model: nn.Module, batches: BatchSampler) -> None:
    """Every rank has its own batch; afterwards all must have the same gradients."""
    loss_of(model, *batches.next_batch()).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert bool(torch.isfinite(parameter.grad).all())


def run_case(rank: Rank, case: str, snippets: list[str], batches: BatchSampler) -> None:
    """Run the first snippet, train a step with it, then the others. ThcReducer's comes after backward."""
    names = names_before(rank, case)
    if "ThcReducer" in snippets[0]:
        train_one_step(names["model"], batches)
    for number, snippet in enumerate(snippets):
        exec(compile(snippet.replace(JOIN, ""), f"<{case}>", "exec"), names)
        if number == 0 and "reducer" not in names:
            train_one_step(names.get("ddp", names["model"]), batches)
    if "ddp" in names or "reducer" in names:
        for parameter in names.get("ddp", names["model"]).parameters():
            mine, sum_ = parameter.grad, parameter.grad.clone()
            dist.all_reduce(sum_)
            assert torch.equal(sum_, rank.ranks * mine)  # exact: a few ranks with the same bits
    for handle in (names.get("state"), names.get("compression"), names.get("reducer")):
        if handle is not None:
            assert handle.compression_stats().ratio > 4
            handle.close()


def main() -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    with joined_rank() as rank:
        assert byteps_thc.__file__.startswith(rank.settings["package"])
        os.chdir(rank.directory)
        batches = BatchSampler(load_corpus().training, batch_size=2, context=32, seed=0, worker=rank.rank)
        for case, snippets in rank.settings["cases"].items():
            run_case(rank, case, snippets, batches)
        rank.report(sorted(rank.settings["cases"]))


if __name__ == "__main__":
    main()
