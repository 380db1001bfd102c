"""One rank of bench_synchronization.py."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from ranks import Rank, joined_rank
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import CompressionPolicy, FaultConfig, NetworkConfig, ParameterSynchronizer, ThcConfig, Timeouts
from byteps_thc.ddp import compress
from thc_lab.demo.data import BatchSampler, Corpus, load_corpus
from thc_lab.demo.model import Gpt, GptShape, loss_of, window_losses

SHAPE = GptShape(layers=2, heads=2, width=128, context=64)
BATCH_SIZE = 8
LEARNING_RATE, WARM_UP_STEPS, FINAL_LEARNING_RATE_FRACTION = 5e-3, 20, 0.05  # the demo's
HELD_OUT_WINDOWS = 100


def train(rank: Rank, corpus: Corpus, seed: int, job: int, loss: float, every: int | None) -> dict[str, Any]:
    """loss: of datagrams. every: steps between synchronisations; None: never."""
    torch.manual_seed(seed)
    ddp = DistributedDataParallel(Gpt(SHAPE))
    network = NetworkConfig(
        rank.settings["servers"],
        job=job,
        loss_tolerant=loss > 0,
        timeouts=Timeouts(loss_s=0.1, operation_s=120),
        faults=FaultConfig(drop=loss, seed=100 * seed + rank.rank + 1) if loss else None,
    )
    # Nothing travels beside the servers, where it would not be lost.
    state = compress(ddp, ThcConfig(), network=network, policy=CompressionPolicy(bypass_elements=0))
    optimizer = torch.optim.AdamW(ddp.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    synchronizer = ParameterSynchronizer(ddp, optimizer, compression=state, synchronize_every=every)
    batches = BatchSampler(corpus.training, batch_size=BATCH_SIZE, context=SHAPE.context, seed=seed, worker=rank.rank)
    steps = rank.settings["steps"]
    for step in range(steps):
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
        decayed = FINAL_LEARNING_RATE_FRACTION + (1 - FINAL_LEARNING_RATE_FRACTION) * cosine
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARM_UP_STEPS) * decayed
        optimizer.zero_grad()
        loss_of(ddp, *batches.next_batch()).backward()
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
        if every:
            synchronizer.step()
    drift = synchronizer.measure_drift()
    stats = state.compression_stats()
    state.close()
    total, windows = window_losses(ddp.module, corpus.held_out, SHAPE.context, HELD_OUT_WINDOWS, 0, 1)
    own = torch.tensor([total / windows, stats.missing_contributions / max(stats.expected_contributions, 1)])
    everyone = [torch.zeros_like(own) for _ in range(rank.ranks)]
    dist.all_gather(everyone, own)
    return {
        "losses": [float(theirs[0]) for theirs in everyone],
        "missing": sum(float(theirs[1]) for theirs in everyone) / rank.ranks,
        "drift": drift,
    }


def main() -> None:
    with joined_rank(timeout_s=600) as rank:
        corpus, settings, results = load_corpus(), rank.settings, []
        loss, every = settings["loss"], settings["every"]
        runs = [("no loss", 0.0, None), (f"{loss:.2%} lost", loss, None)]
        runs.append((f"{loss:.2%} lost, synchronised every {every} steps", loss, every))
        for seed in range(settings["seeds"]):
            for name, lost, steps in runs:
                result = train(rank, corpus, seed, 1 + len(results), lost, steps)
                results.append(result | {"name": name, "seed": seed})
        rank.report(results)


if __name__ == "__main__":
    main()
