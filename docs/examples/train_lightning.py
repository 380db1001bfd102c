"""Train a character-level GPT on the source of Python's standard library, with Lightning and THC.

torchrun --standalone --nproc-per-node 4 train_lightning.py
torchrun --standalone --nproc-per-node 4 train_lightning.py --resume checkpoints/step=20.ckpt    # goes on from there
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from byteps_thc.checkpoint import gathered
from byteps_thc.ddp import compress
from thc_lab.demo.data import BatchSampler, load_corpus
from thc_lab.demo.model import Gpt, GptShape, loss_of


class Batches(IterableDataset[tuple[Tensor, Tensor]]):
    """Those of this process, from a step on: a trainer that goes on from within an epoch does not skip data."""

    def __init__(self, batch_size: int, step: int) -> None:
        self.batch_size, self.step = batch_size, step

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        rank = int(os.environ["RANK"])
        batches = BatchSampler(load_corpus().training, batch_size=self.batch_size, context=128, seed=0, worker=rank)
        for _ in range(self.step):
            batches.next_batch()
        while True:
            yield batches.next_batch()


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.gpt = Gpt(GptShape())

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        return loss_of(self.gpt, *batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


class Compression(Callback):
    """Compresses what Lightning's DDP averages; puts the states of all ranks into the trainer's checkpoints."""

    saved: dict[str, Any] | None = None

    def on_train_start(self, trainer: lightning.Trainer, _: Any) -> None:
        self.state = compress(trainer.strategy.model)
        if self.saved:  # the trainer goes on from a checkpoint, which it has read before it made the DDP model
            gathered(self.state).load_state_dict(self.saved)

    def state_dict(self) -> dict[str, Any]:
        return gathered(self.state).state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.saved = state_dict

    def on_train_batch_end(self, trainer: lightning.Trainer, _: Any, outputs: Any, *__: Any) -> None:
        step = trainer.global_step
        if trainer.is_global_zero and (step == 1 or step % 10 == 0):
            print(f"step {step}: loss {outputs['loss'].item():.6f}", flush=True)

    def on_train_end(self, trainer: lightning.Trainer, _: Any) -> None:
        if trainer.is_global_zero:
            print(self.state.compression_stats())  # "ratio": how much less was sent than in fp32


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8, help="windows of 128 characters, per process")
    parser.add_argument("--save-every", type=int, default=20, help="steps from one checkpoint to the next")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), help="a folder for them")
    parser.add_argument("--resume", type=Path, help="one of them")
    args = parser.parse_args()

    lightning.seed_everything(0)
    step = int(args.resume.stem.removeprefix("step=")) if args.resume else 0
    batches = DataLoader(Batches(args.batch_size, step), batch_size=None)
    checkpoints = ModelCheckpoint(
        args.checkpoints, filename="{step}", every_n_train_steps=args.save_every, save_top_k=-1
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),  # as torchrun has started them
        # DDP keeps the buckets of its first step then, so that a resumed run repeats the other one bit for bit.
        strategy=DDPStrategy(find_unused_parameters=True),
        callbacks=[Compression(), checkpoints],
        max_steps=args.steps,
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(Model(), batches, ckpt_path=args.resume)


if __name__ == "__main__":
    main()
