"""One rank of bench_ddp_loss.py: trains the demo's model once with DDP's own average, once with thc_hook."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from ranks import Rank, joined_rank
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ThcConfig
from byteps_thc.ddp import ThcState, thc_hook
from thc_lab.demo.data import BatchSampler, Corpus, load_corpus
from thc_lab.demo.model import Gpt, GptShape, loss_of, window_losses
from thc_lab.demo.settings import DemoSettings

DEMO = DemoSettings()
WARM_UP_STEPS = 20
FINAL_LEARNING_RATE_FRACTION = 0.05
MAX_GRADIENT_NORM = 1.0


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine, as in the demo."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    decayed = FINAL_LEARNING_RATE_FRACTION + (1 - FINAL_LEARNING_RATE_FRACTION) * cosine
    return DEMO.learning_rate * min(1.0, (step + 1) / WARM_UP_STEPS) * decayed


def train(rank: Rank, corpus: Corpus, compressed: bool) -> DistributedDataParallel:
    """The same initial parameters and batches whether compressed or not."""
    torch.manual_seed(DEMO.seed)
    model = DistributedDataParallel(Gpt(GptShape(DEMO.layers, DEMO.heads, DEMO.width, DEMO.context)))
    state = ThcState(None, ThcConfig()) if compressed else None
    if state is not None:
        model.register_comm_hook(state, thc_hook)
    batches = BatchSampler(
        corpus.training, batch_size=DEMO.batch_size, context=DEMO.context, seed=DEMO.seed, worker=rank.rank
    )
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(rank.settings["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, rank.settings["steps"])
        optimizer.zero_grad()
        loss_of(model, *batches.next_batch()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        optimizer.step()
    if state is not None:
        state.close()
    return model


def held_out_loss(rank: Rank, model: Gpt, corpus: Corpus) -> float:
    """Mean over all windows of the held-out text, shared by the ranks; nats per character."""
    sums = torch.tensor(
        window_losses(model, corpus.held_out, DEMO.context, None, rank.rank, rank.ranks), dtype=torch.float64
    )
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])


def main() -> None:
    with joined_rank(timeout_s=600) as rank:
        corpus = load_corpus()
        losses = {}
        for name, compressed in (("fp32", False), ("thc", True)):
            model = train(rank, corpus, compressed)
            losses[name] = held_out_loss(rank, model.module, corpus)
        rank.report(losses)


if __name__ == "__main__":
    main()
