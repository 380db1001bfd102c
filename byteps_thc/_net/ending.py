"""Ends an object's threads, connections and devices when it is closed or collected, or at exit."""

import _thread
import atexit
import gc
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

_logger = logging.getLogger("byteps_thc")

#: Ends have own bounds: threads are joined for 2 s, collectives of NCCL get 10 s and its shutdown another 10 s.
_PATIENCE_S = 30.0


class Ending:
    """Calls `end` once: in close(), else when `owner` is collected, else at exit. A forked child never calls it.

    end: holds the owner's resources but not `owner`. For a collected owner it runs in a new thread, because the garbage
    collector may interrupt any thread under any lock. at_exit: call `end` before Python ends, newest first. Exit waits
    for an `end` under way, because a thread that returns from C++ then waits for good (csrc/python/ending.cc).
    """

    def __init__(self, owner: object, end: Callable[[], None], *, at_exit: bool = True) -> None:
        self._end: Callable[[], None] | None = end
        self._process = os.getpid()
        self._ends_at_exit, self._exiting = at_exit, False
        self._begun = threading.Lock()  # never released
        self._over = threading.Event()
        self._owner: weakref.ref[object] | None = weakref.ref(owner, self._forgotten)
        _open.append(self)
        atexit.register(self._at_exit)

    def close(self) -> None:
        if self._begin():
            self._run()

    def wait(self, deadline_s: float) -> None:
        """Wait for an `end` under way, until that time of time.monotonic()."""
        if self._begun.locked():
            self._over.wait(max(0.0, deadline_s - time.monotonic()))

    def _begin(self) -> bool:
        """Return whether this call is the first, in the process that owns the threads and connections."""
        return os.getpid() == self._process and self._begun.acquire(blocking=False)

    def _run(self) -> None:
        end, self._end, self._owner = self._end, None, None
        assert end is not None
        try:
            end()
        finally:
            del end  # destructors of its objects belong to the end
            atexit.unregister(self._at_exit)
            _open.remove(self)
            self._over.set()

    def _forgotten(self, _: weakref.ref[object]) -> None:
        # In a forked child _open keeps the resources: destructors would wait for threads that only the parent has.
        if self._exiting or sys.is_finalizing() or not self._begin():
            return
        try:
            # threading.Thread.start() waits for locks that the interrupted thread may hold.
            _thread.start_new_thread(self._run_logging, ())
        except RuntimeError:  # Python 3.12 starts no threads at its end
            self._run_logging()

    def _run_logging(self) -> None:
        try:
            self._run()
        except Exception as error:  # of any back end
            _logger.warning("closing a forgotten object failed: %s", error)

    def _at_exit(self) -> None:
        self._exiting = True  # nobody would wait for a thread that starts now
        if self._ends_at_exit:
            self.close()
        if os.getpid() == self._process:
            self.wait(time.monotonic() + _PATIENCE_S)


_open: list[Ending] = []


def within(limit_s: float, call: Callable[[], T], name: str, *, or_here: bool = False) -> Future[T] | None:
    """Run a call that cannot be cancelled in a daemon thread; return its outcome, or None after limit_s.

    name: of the thread
    or_here: whether to run it here, without a limit, if no thread starts, as at the end of Python 3.12; default: None
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except Exception as error:
            outcome.set_exception(error)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:
        if not or_here:
            return None
        run()
    return outcome if wait([outcome], limit_s).done else None


def collect_forgotten() -> None:
    """Close the unreachable objects of this process before more are opened; wait 30 s at most."""
    # DDP models are in reference cycles: a sweep would run out of descriptors before the collector's own turn.
    if _open:
        gc.collect()
    deadline_s = time.monotonic() + _PATIENCE_S
    for ending in _open.copy():
        ending.wait(deadline_s)


def close_at_exit(close: Callable[[], None]) -> None:
    """Call that method when this process's Python ends, not in a forked child. Its object is held weakly."""
    _closed_at_exit[weakref.WeakMethod(close, _closed_at_exit.pop)] = os.getpid()


_closed_at_exit: dict[weakref.WeakMethod[Callable[[], None]], int] = {}


@atexit.register
def _close_open() -> None:
    for method, process in list(_closed_at_exit.items()):
        if process == os.getpid() and (close := method()) is not None:
            close()
