"""Train a GPT-2 on the characters of Python's standard library, with the Trainer of transformers and THC.

torchrun --standalone --nproc-per-node 4 train_trainer.py
torchrun --standalone --nproc-per-node 4 train_trainer.py --resume checkpoints/checkpoint-20    # goes on from there
"""

import argparse
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from byteps_thc.checkpoint import checkpointable, load
from byteps_thc.ddp import compress
from thc_lab.demo.data import VOCABULARY_SIZE, load_corpus


class Compression(TrainerCallback):
    """Compresses what the trainer's DDP model averages; puts the states of all ranks beside its checkpoints."""

    trainer: Trainer

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, _: TrainerControl, **__: Any) -> None:
        self.thc = compress(self.trainer.model_wrapped)
        if state.global_step:  # the trainer goes on from a checkpoint
            load(self.thc, self.folder(args, state))

    def on_save(self, args: TrainingArguments, state: TrainerState, _: TrainerControl, **__: Any) -> None:
        dcp.save({"thc": checkpointable(self.thc)}, checkpoint_id=self.folder(args, state))

    def on_log(self, _: TrainingArguments, state: TrainerState, __: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero and "loss" in kwargs["logs"]:
            print(f"step {state.global_step}: loss {kwargs['logs']['loss']}", flush=True)  # the mean since the last one

    def on_train_end(self, _: TrainingArguments, state: TrainerState, __: TrainerControl, **___: Any) -> None:
        if state.is_world_process_zero:
            print(self.thc.compression_stats())  # "ratio": how much less was sent than in fp32

    def folder(self, args: TrainingArguments, state: TrainerState) -> Path:
        return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / "thc"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8, help="windows of 128 characters, per process")
    parser.add_argument("--save-every", type=int, default=20, help="steps from one checkpoint to the next")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), help="a folder for them")
    parser.add_argument("--resume", type=Path, help="one of them")
    args = parser.parse_args()

    set_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY_SIZE, n_positions=128, n_embd=144, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0
    )
    windows = load_corpus().training.unfold(0, 128, 128)
    compression = Compression()
    compression.trainer = Trainer(
        GPT2LMHeadModel(config),
        TrainingArguments(
            output_dir=str(args.checkpoints),
            max_steps=args.steps,
            per_device_train_batch_size=args.batch_size,
            learning_rate=2e-3,
            lr_scheduler_type="constant",
            save_steps=args.save_every,
            logging_steps=10,
            logging_first_step=True,
            # DDP keeps the buckets of its first step then, so that a resumed run repeats the other one bit for bit.
            ddp_find_unused_parameters=True,
            use_cpu=True,
            ddp_backend="gloo",
            disable_tqdm=True,
            report_to="none",
        ),
        train_dataset=[{"input_ids": window, "labels": window} for window in windows],
        callbacks=[compression],
    )
    compression.trainer.train(resume_from_checkpoint=args.resume and str(args.resume))


if __name__ == "__main__":
    main()
