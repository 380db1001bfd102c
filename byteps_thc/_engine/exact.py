"""Gradients that travel uncompressed."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc._engine.agreement import Contents, Questions, how_it_travels
from byteps_thc._engine.piece import Piece
from byteps_thc._engine.statistics import StatsRecorder
from byteps_thc._net.communicator import ExactSum, Waitable


@dataclass(frozen=True)
class ExactTools:
    """Shared by the gradients of an engine. sum: of exact values over the workers."""

    sum: ExactSum
    recorder: StatsRecorder
    workers: int
    device: torch.device

    @cached_property
    def divisor(self) -> Tensor:
        # A tensor: torch multiplies by the inverse of a number on a GPU, with other bits.
        return torch.full((), float(self.workers), device=self.device)


class Question(Piece):
    """The question whether all workers have the same gradient next, without the gradient. size: of the gradient."""

    def __init__(
        self, questions: Questions, contents: Contents, size: int, dtype: torch.dtype, *, compress: bool
    ) -> None:
        self._questions, self._contents, self._size = questions, contents, size
        self._facts = how_it_travels(compress), str(dtype)

    def ask(self, round: int, *facts: str) -> None:
        """Raise InputError on all workers unless all ask about the same gradient and facts."""
        self._questions.require_same(self._contents, self._size, round, *facts, *self._facts)

    @override
    def measure(self, gradient: Tensor, round: int) -> None:
        self.ask(round)


class UncompressedPiece(Piece):
    """A gradient in a round. Its sum starts once all workers are known to have it next, uncompressed."""

    def __init__(self, tools: ExactTools, question: Question) -> None:
        self._exact, self._question = tools, question
        self._round: int
        self._values: Tensor
        self._work: Waitable

    @override
    def measure(self, gradient: Tensor, round: int) -> None:
        self._round = round
        self._values = gradient if gradient.dtype == torch.float64 else gradient.float()  # no copy of float32

    @override
    def encode(self) -> None:
        self.ask()
        self._exact.recorder.add_collective(2 * self._values.nbytes, self._exact.workers)
        self._work = self._exact.sum(self._values)

    @override
    def decode(self, out: Tensor) -> None:
        self._work.wait()
        average = self._values.div_(self._exact.divisor)
        if average is not out:
            out.copy_(average)

    def ask(self) -> None:
        """Raise InputError on all workers unless all have this gradient next, uncompressed."""
        self._question.ask(self._round, f"round {self._round}")
