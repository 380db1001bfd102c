"""Takes the pieces of gradients through their stages (piece.py): a thread for each stage, or one stream.

adding/averager.py has a way of its own.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from byteps_thc._engine.piece import Piece
from byteps_thc._engine.staging import SideStream, Staging

_NOTHING = torch.empty(0, device="cpu")


@dataclass(eq=False)
class Reduction:
    """A gradient on its way to its average; the future returns `gradient`.

    source: the input, the same tensor in an all-reduce. staging: brings it to the kernels; None: kernels read it in
    place. out: memory for the average, where the kernels work.
    """

    key: str
    source: Tensor
    gradient: Tensor
    pieces: Sequence[Piece]
    staging: Staging | None
    round: int
    compress: bool
    future: Future[Tensor]
    out: Tensor = _NOTHING
    _taken: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> Tensor:
        """Wait for the average, and return it. Raises the engine's error."""
        return self.future.wait()

    def wait_taken(self) -> None:
        """Wait until the memory of a separate source is free again. Raises the engine's error."""
        self._taken.wait()
        if self.future.done():
            self.future.wait()

    def take_no_longer(self) -> None:
        """Let wait_taken() return if the engine has ended first."""
        self.future.add_done_callback(lambda _: self._taken.set())

    def release_source(self) -> None:
        """Drop the source: the codes have its values."""
        self.source = _NOTHING
        self._taken.set()


@dataclass(frozen=True)
class Task:
    """A piece of a gradient. last: of its gradient."""

    job: Reduction
    piece: Piece
    last: bool


class Stages:
    """The stages, each called in the order of the gradients.

    finish: called with key and future of each averaged gradient.
    """

    def __init__(self, finish: Callable[[str, Future[Tensor], Tensor], None]) -> None:
        self._finish = finish

    def measure(self, job: Reduction) -> Iterator[Task]:
        staged = job.source if job.staging is None else job.staging.fetch(job.source)
        job.out = staged if job.source is job.gradient else job.gradient
        for piece in job.pieces:
            piece.measure(staged, job.round)
            yield Task(job, piece, last=piece is job.pieces[-1])

    def encode(self, task: Task) -> Iterator[Task]:
        task.piece.encode()
        if task.last and task.job.source is not task.job.gradient:
            task.job.release_source()
        yield task

    def sum(self, task: Task) -> Iterator[Task]:
        task.piece.sum()
        yield task

    def decode(self, task: Task) -> Iterator[Task]:
        job = task.job
        task.piece.decode(job.out)
        if task.last:
            if job.staging is not None:
                job.staging.put_back(job.gradient)
            self._finish(job.key, job.future, job.gradient)
        return iter(())


#: Takes an item, yields items for the next stage as they get ready; items of the last stage are dropped.
Stage = Callable[[Any], Iterable[object]]

_END = object()
#: For all threads together. A thread in a collective ends with the collective's deadline, or with the process: when it
#: returns from C++ while Python ends, it waits there (csrc/python/ending.cc).
_JOIN_S = 2.0


class StageThreads:
    """Runs every item through the stages, each in order of arrival.

    stages: (name of the thread, function). failed: called once, by the stage's thread, with the first exception of any
    stage; queued items are then dropped. around: context of each thread.
    """

    def __init__(
        self,
        stages: Sequence[tuple[str, Stage]],
        failed: Callable[[Exception], None],
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._failed, self._around, self._ended = failed, around, False
        self._queues: list[SimpleQueue[object]] = [SimpleQueue() for _ in stages]
        self._threads = [
            # Daemons: a thread that waits for a dead rank must not keep the process from ending.
            threading.Thread(target=self._run, args=(number, stage), name=name, daemon=True)
            for number, (name, stage) in enumerate(stages)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, item: object) -> None:
        self._queues[0].put(item)

    def end(self) -> None:
        """Drop all queued items."""
        self._ended = True
        for queue in self._queues:
            queue.put(_END)

    def join(self) -> None:
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:
            if thread.ident != threading.get_ident():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, number: int, stage: Stage) -> None:
        following = self._queues[number + 1] if number + 1 < len(self._queues) else None
        try:
            with self._around():
                while self._serve_next(self._queues[number], stage, following):
                    pass
        except Exception as error:
            if not self._ended:
                self.end()
                self._failed(error)

    def _serve_next(self, queue: SimpleQueue[object], stage: Stage, following: SimpleQueue[object] | None) -> bool:
        """Return whether there may be more. Keeps no item: a waiting thread must not hold its last gradient."""
        item = queue.get()
        if item is _END or self._ended:
            return False
        for result in stage(item):
            if following is not None:
                following.put(result)
        return True


def stage_threads(stages: Stages, stream: SideStream, failed: Callable[[Exception], None]) -> StageThreads:
    """Return a thread for each stage: gradients and pieces overlap. failed: called once, with the first error."""
    named: list[tuple[str, Stage]] = [
        ("thc-measure", stages.measure),
        ("thc-encode", stages.encode),
        ("thc-sum", stages.sum),
        ("thc-decode", stages.decode),
    ]
    return StageThreads(named, failed, stream.current)


class StreamDriver:
    """Puts all stages of a gradient on streams, behind the current one, in the caller's thread.

    Compressed gradients are encoded on a stream of their own, ahead of the other stages of earlier gradients. Nothing
    waits: Future.wait() makes the current stream wait. Collectives start in the order of the calls, as on all ranks.
    """

    def __init__(self, stages: Stages, stream: SideStream, failed: Callable[[Exception], None]) -> None:
        self._encoding, self._stream = SideStream(stream.device), stream
        self._stages, self._failed = stages, failed

    def submit(self, job: Reduction) -> None:
        """Put the gradient on the streams. A reduce-scatter's caller holds both tensors while its stream waits."""
        stages = self._stages
        used = [job.gradient] if job.source is job.gradient and job.gradient.device == self._stream.device else []
        first = self._encoding if job.compress else self._stream
        with first.behind_current(), torch.no_grad():
            try:
                tasks = [*stages.measure(job)]
                with self._stream.behind_current(*used):
                    for task, stage in itertools.product(tasks, (stages.encode, stages.sum, stages.decode)):
                        for _ in stage(task):
                            pass
            except Exception as error:  # Triton's errors have no other base
                self._failed(error)

    def end(self) -> None:
        """Do nothing: none is under way."""

    def join(self) -> None:
        """Do nothing: none is under way."""
