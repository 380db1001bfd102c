"""Train a character-level GPT on the source of Python's standard library, with Lightning and THC.

torchrun --standalone --nproc-per-node 4 train_lightning.py
torchrun --standalone --nproc-per-node 4 train_lightning.py --resume checkpoints/step=20.ckpt    # goes on from there
"""

import argparse
import os
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from byteps_thc.checkpoint import gathered
from byteps_thc.ddp import compress
from byteps_thc.tools.demo.data import load_corpus
from byteps_thc.tools.demo.model import Gpt, GptShape, loss_of


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.gpt = Gpt(GptShape())

    def training_step(self, batch: Tensor, _: int) -> Tensor:
        return loss_of(self.gpt, batch[:, :-1], batch[:, 1:])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


class Compression(Callback):
    """Compresses what Lightning's DDP averages; puts the residuals of all ranks into the trainer's checkpoints."""

    saved: dict[str, Any] | None = None

    def on_train_start(self, trainer: lightning.Trainer, _: Any) -> None:
        self.state = compress(trainer.strategy.model, error_feedback=True)
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
    parser.add_argument("--save-every", type=int, default=20, help="steps of an epoch; a checkpoint follows it")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), help="a folder for them")
    parser.add_argument("--resume", type=Path, help="one of them")
    args = parser.parse_args()

    lightning.seed_everything(0)
    windows = load_corpus().training.unfold(0, 129, 128)
    sampler = DistributedSampler(windows, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))
    if args.resume:  # Lightning asks for the first data of a resumed run before it tells the sampler which epoch it is
        sampler.set_epoch(int(args.resume.stem.removeprefix("step=")) // args.save_every)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),  # as torchrun has started them
        # DDP keeps the buckets of its first step then, so that a resumed run repeats the other one bit for bit.
        strategy=DDPStrategy(find_unused_parameters=True),
        callbacks=[Compression(), ModelCheckpoint(args.checkpoints, filename="{step}", save_top_k=-1)],
        max_steps=args.steps,
        limit_train_batches=args.save_every,
        use_distributed_sampler=False,  # in place of the one above
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(Model(), DataLoader(windows, args.batch_size, sampler=sampler), ckpt_path=args.resume)


if __name__ == "__main__":
    main()
