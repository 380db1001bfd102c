"""Call the stages of gradients: a thread for each stage, or one stream. averager.py has its own way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from typing import Any

import torch

from byteps_thc._engine.stages import Reduction, Stages
from byteps_thc._engine.staging import SideStream

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
        self._failed = failed
        self._around = around
        self._ended = False
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
        try:
            with self._around():
                self._serve(number, stage)
        except Exception as error:
            if not self._ended:
                self.end()
                self._failed(error)

    def _serve(self, number: int, stage: Stage) -> None:
        following = self._queues[number + 1] if number + 1 < len(self._queues) else None
        while self._serve_next(self._queues[number], stage, following):
            pass

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
    """Puts all stages of a gradient on a stream, behind the current one, in the caller's thread.

    Nothing waits: Future.wait() makes the current stream wait. So no thread is needed, and collectives start in the
    order of the calls, the same on all ranks.
    """

    def __init__(self, stages: Stages, stream: SideStream, failed: Callable[[Exception], None]) -> None:
        self._stream = stream
        self._stages, self._failed = stages, failed

    def submit(self, job: Reduction) -> None:
        stages = self._stages
        on_device = [tensor for tensor in (job.source, job.gradient) if tensor.device == self._stream.device]
        with self._stream.behind_current(*on_device), torch.no_grad():
            try:
                for measured in stages.measure(job):
                    for encoded in stages.encode(measured):
                        for summed in stages.sum(encoded):
                            for _ in stages.decode(summed):
                                pass
            except Exception as error:  # Triton's errors have no other base
                self._failed(error)

    def end(self) -> None:
        """Do nothing: none is under way."""

    def join(self) -> None:
        """Do nothing: none is under way."""
