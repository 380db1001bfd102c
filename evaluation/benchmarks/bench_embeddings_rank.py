"""One rank of bench_embeddings.py: trains the same model with each kind of average."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.functional import cross_entropy, embedding
from torch.nn.parallel import DistributedDataParallel

from byteps_thc.ddp import compress
from thc_lab.ranks import Rank, joined_rank

WORDS, WIDTH, CLASSES, BATCH, PADDING = 20_000, 32, 16, 256, 16
LEARNING_RATE = 2e-2
#: Words of so many occurrences in all batches at most are rare.
RARE = 10


class Table(nn.Module):
    """nn.Embedding under another name: nothing finds it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.Embedding(WORDS, WIDTH, padding_idx=0).weight.detach())

    def forward(self, words: Tensor) -> Tensor:
        return embedding(words, self.weight, padding_idx=0)


class Classifier(nn.Module):
    def __init__(self, named: bool) -> None:
        super().__init__()
        self.words: Any = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        if not named:
            table = Table()
            table.weight.data.copy_(self.words.weight.data)
            self.words = table
        self.layers = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, CLASSES))

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.layers(self.words(words))
        return scores


class Language:
    """Words of a shuffled Zipf distribution, each with a class."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(7)
        self.order = torch.randperm(WORDS - 1, generator=random) + 1
        self.classes = torch.randint(0, CLASSES, (WORDS,), generator=random)
        self._likely = 1 / torch.arange(1, WORDS).double()

    def batch(self, step: int, rank: int) -> Tensor:
        random = torch.Generator().manual_seed(1000 * step + rank)
        words = self.order[torch.multinomial(self._likely, BATCH - PADDING, replacement=True, generator=random)]
        return torch.cat([words, torch.zeros(PADDING, dtype=torch.long)])


def figures(language: Language, model: Classifier, start: Tensor, steps: int, ranks: int) -> list[float]:
    """A line of the table, see bench_embeddings.COLUMNS: moved rows, and rows of no batch apart."""
    words = torch.cat([language.batch(step, rank) for step in range(steps) for rank in range(ranks)])
    counts = torch.bincount(words, minlength=WORDS)
    weight = model.words.weight.detach()
    moved = (weight - start).norm(dim=1)
    absent = counts == 0
    with torch.no_grad():
        losses = cross_entropy(model(torch.arange(WORDS)), language.classes, reduction="none")
    trained = counts.clone()
    trained[0] = 0
    rare, frequent = (trained > 0) & (trained <= RARE), trained > RARE
    share = moved[absent].mean() / moved[trained > 0].mean()
    means = [float(losses[part].mean()) for part in (rare, frequent)]
    return [int((moved[absent] > 0).sum()), int(absent.sum()), float(share), float(weight[0].abs().max()), *means]


def bf16_hook(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """torch's, which DDP refuses by its name on gloo."""
    return bf16_compress_hook(state, bucket)


def train(rank: Rank, language: Language, average: str, named: bool = True, **settings: Any) -> list[float]:
    torch.manual_seed(0)
    ddp = DistributedDataParallel(Classifier(named))
    start = ddp.module.words.weight.detach().clone()
    state = compress(ddp, **settings) if average == "THC" else None
    if average == "bf16":
        ddp.register_comm_hook(None, bf16_hook)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=LEARNING_RATE, weight_decay=0)
    for step in range(rank.settings["steps"]):
        words = language.batch(step, rank.rank)
        optimizer.zero_grad()
        losses = cross_entropy(ddp(words), language.classes[words], reduction="none")
        (losses * (words > 0)).mean().backward()
        optimizer.step()
    if state is not None:
        state.close()
    return figures(language, ddp.module, start, rank.settings["steps"], rank.ranks)


def cases(rank: Rank) -> Iterator[tuple[str, list[float]]]:
    language = Language()
    yield "fp32", train(rank, language, "fp32")
    yield "bf16", train(rank, language, "bf16")
    yield "THC", train(rank, language, "THC")
    yield "THC, 3 bits", train(rank, language, "THC", bits=3)
    yield "THC, blocks across rows", train(rank, language, "THC", named=False)


def main() -> None:
    with joined_rank(timeout_s=600) as rank:
        torch.set_num_threads(1)
        results = dict(cases(rank))
        dist.barrier()
        rank.report(results)


if __name__ == "__main__":
    main()
