"""The calls of a ThcReducer on their way through its threads and the engine."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch
from torch import Tensor
from torch.futures import Future

from byteps_thc._base.errors import DeadlineError, InputError, TransportError
from byteps_thc._engine.agreement import Questions
from byteps_thc._engine.engine import Engine, GradientBuffer
from byteps_thc._engine.in_flight import set_error
from byteps_thc._engine.stages import StageThreads
from byteps_thc._engine.steps import Steps
from byteps_thc._own_loop.tensor_packing import Packing, Signature


@dataclass(eq=False)
class Call:
    """A call of all_reduce(). ready: events after which buffers on CUDA may be read. reducer: not collected before."""

    packing: Packing
    tensors: list[Tensor]
    work: "AverageWork"
    reducer: object
    buffers: list[GradientBuffer] = field(default_factory=list)
    ready: list[torch.Event] = field(default_factory=list)
    futures: list[Future[Tensor]] = field(default_factory=list)

    def finish(self, error: Exception | None) -> None:
        """Hand the average over, or the error."""
        self.work.finish(error)
        self.reducer = None


class Calls:
    """Takes calls through two threads, in front of and behind the engine's own; ends with both.

    questions: compare the ranks' tensors before every call, with asks_once before the first call of each packing, after
    earlier averages: the engine finds a different order of known packings. leave: closes the communicators.
    """

    def __init__(
        self, engine: Engine, questions: Questions, steps: Steps, *, asks_once: bool, leave: Callable[[], None]
    ) -> None:
        self._engine, self._questions, self._asks_once, self._steps = engine, questions, asks_once, steps
        self._leave = leave
        #: agreed by all ranks, as the signature of each name below; written by the agree thread
        self.packings: dict[tuple[Signature, ...], Packing] = {}
        self.known: dict[str, Signature] = {}
        self._submitted: list[Future[Tensor]] = []  # by the agree thread, of the calls that may be in flight
        self._lock = threading.Lock()  # guards the next two
        self._in_flight: list[Call] = []
        self._error: Exception | None = None
        self._threads = StageThreads([("thc-agree", self._agree), ("thc-finish", self._finish)], self._fail)

    def submit(self, call: Call) -> None:
        """Pack the tensors, and let the call in. InputError when a name is in flight, TransportError after the end."""
        packing = call.packing
        with self._lock:
            if self._error is not None:
                raise TransportError(f"the reducer has ended: {self._error}") from self._error
            for other in self._in_flight:
                if not packing.names.isdisjoint(other.packing.names):
                    name = min(packing.names & other.packing.names)
                    raise InputError(f"{name!r} is in flight: wait() for the call that has it first")
            packing.wait_for_memory()
            call.buffers = packing.pack(call.tensors)
            call.ready = [torch.cuda.current_stream(device).record_event() for device in packing.cuda_devices]
            self._in_flight.append(call)
            self._threads.submit(call)

    def require_idle(self, what: str) -> None:
        """Raise InputError when calls are in flight."""
        with self._lock:
            if self._in_flight:
                raise InputError(f"{what}: {len(self._in_flight)} calls are in flight, wait() for them first")

    def close(self) -> None:
        """End the threads and the engine, and log the last step; averages in flight fail."""
        self._threads.end()
        self._fail(TransportError("the reducer was closed"))
        self._engine.close()
        self._threads.join()
        self._leave()
        self._steps.log()

    def _agree(self, call: Call) -> Iterator[Call]:
        """Let a call into the engine that is the next one of all ranks."""
        self._submitted = [future for future in self._submitted if not future.done()]
        try:
            self._require_same(call.packing)
        except InputError as error:  # on all ranks, before any has begun
            self._finished(call, error)
            return
        self.packings[call.packing.signature] = call.packing
        self.known |= {now[0]: now for now in call.packing.signature}
        self._steps.start()
        # The engine waits for earlier work of the current streams, which are this thread's.
        for device, event in zip(call.packing.cuda_devices, call.ready, strict=True):
            torch.cuda.current_stream(device).wait_event(event)
        call.futures = [self._engine.all_reduce(buffer) for buffer in call.buffers]
        self._submitted += call.futures
        yield call

    def _require_same(self, packing: Packing) -> None:
        if self._asks_once:
            if packing.signature in self.packings:
                return
            for future in self._submitted:
                future.wait()
        self._questions.require_same(packing.contents, 0, 0)

    def _finish(self, call: Call) -> Iterator[None]:
        """Hand the averages over. Waits have the engine's deadlines."""
        for future in call.futures:
            future.wait()
        call.packing.unpack(call.buffers, call.tensors)
        self._finished(call, None)
        return iter(())

    def _finished(self, call: Call, error: Exception | None) -> None:
        with self._lock:
            if call not in self._in_flight:
                return  # closed meanwhile
            self._in_flight.remove(call)
            if error is None:
                call.packing.used_until = call.work.get_future()
        call.finish(error)  # not under the lock: its callbacks may call all_reduce()

    def _fail(self, error: Exception) -> None:
        """End all that is in flight, and all later calls."""
        with self._lock:
            self._error = self._error or error
            calls, self._in_flight = self._in_flight, []
        for call in calls:
            call.finish(error)


class AverageWork:
    """An average under way, with torch.distributed.Work's main methods."""

    def __init__(self, tensors: Sequence[Tensor], cuda_devices: Sequence[torch.device]) -> None:
        self._tensors = list(tensors)
        self._future: Future[list[Tensor]] = Future(devices=list(cuda_devices) or None)
        self._over = threading.Event()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the tensors hold the average, and return True. Repeated calls are allowed.

        timeout: None or zero: CompressionPolicy.deadline_s.

        Raises DeadlineError after the timeout, with the average still in flight. Raises InputError if ranks average
        different tensors, DeadlineError or TransportError if another rank is late or gone.
        """
        seconds = timeout.total_seconds() if timeout else None
        if not self._over.wait(seconds):
            raise DeadlineError(f"the average did not arrive within {seconds} s; it is still under way")
        self._future.wait()  # the current CUDA streams wait for the copies, too
        return True

    def is_completed(self) -> bool:
        """Whether wait() would return, or raise, at once."""
        return self._over.is_set()

    def get_future(self) -> Future[list[Tensor]]:
        """Return a future of the tensors, in the order they were given.

        Its callbacks are run by a thread of the reducer: they must not wait.
        """
        return self._future

    def finish(self, error: Exception | None) -> None:
        """End it; by the reducer, once."""
        self._over.set()
        if error is None:
            self._future.set_result(self._tensors)
        else:
            set_error(self._future, error)
