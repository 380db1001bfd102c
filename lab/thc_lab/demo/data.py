"""Training text that every machine has: the source of Python's own standard library."""

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

#: Newline and printable ASCII; everything else becomes UNKNOWN.
ALPHABET = "\n" + "".join(chr(code) for code in range(32, 127))
UNKNOWN = len(ALPHABET)
VOCABULARY_SIZE = len(ALPHABET) + 1
#: Every tenth file is held out.
HELD_OUT_STRIDE = 10


@dataclass(frozen=True)
class Corpus:
    """Token ids (int64, 0 .. VOCABULARY_SIZE - 1) of the training files and of the held-out files."""

    training: Tensor
    held_out: Tensor
    files: int


def load_corpus(training_tokens: int = 4_000_000, held_out_tokens_per_file: int = 2048) -> Corpus:
    """Read the top-level modules of the standard library in sorted order; split by file, not inside files.

    Sizes are upper limits in characters; a held-out file gives its middle, so that each file counts alike.
    The result depends on the Python version only.
    """
    training: list[np.ndarray] = []
    held_out: list[np.ndarray] = []
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    for index, path in enumerate(paths):
        tokens = _encode(path.read_bytes())
        if index % HELD_OUT_STRIDE == 0:
            middle = max(0, len(tokens) - held_out_tokens_per_file) // 2
            held_out.append(tokens[middle : middle + held_out_tokens_per_file])
        else:
            training.append(tokens)
    return Corpus(
        training=torch.from_numpy(np.concatenate(training)[:training_tokens]),
        held_out=torch.from_numpy(np.concatenate(held_out)),
        files=len(paths),
    )


def _encode(text: bytes) -> np.ndarray:
    ids = np.full(256, UNKNOWN, dtype=np.int64)
    ids[np.frombuffer(ALPHABET.encode("ascii"), dtype=np.uint8)] = np.arange(len(ALPHABET))
    return ids[np.frombuffer(text, dtype=np.uint8)]


class BatchSampler:
    """Random windows of the text. The same (seed, worker, step) gives the same batch in every run."""

    def __init__(self, tokens: Tensor, *, batch_size: int, context: int, seed: int, worker: int) -> None:
        self._tokens = tokens
        self._batch_size = batch_size
        self._offsets = torch.arange(context, device="cpu")
        self._generator = torch.Generator().manual_seed(seed * 1_000_003 + worker)

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Inputs and the targets one character later, both int64[batch_size, context]."""
        last_start = len(self._tokens) - len(self._offsets) - 1
        starts = torch.randint(last_start, (self._batch_size, 1), generator=self._generator, device="cpu")
        windows = starts + self._offsets
        return self._tokens[windows], self._tokens[windows + 1]
