"""How a worker of BytePS ends when others have not: in time.

BytePS's shutdown, which it registers to run at exit, waits for all workers and servers, for ever when one has died. A
process that uses byteps_thc.torch waits for a deadline, and then ends with the exit status that it was about to have.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import os
import threading
from collections.abc import Callable
from pathlib import Path

from byteps_thc.errors import DeadlineError
from byteps_thc.torch.byteps_library import byteps_operations
from byteps_thc.torch.worker_library import find_worker_library

#: Seconds that other workers may take to get to their end after this one.
EXIT_DEADLINE_S = 60.0


class _Ending:
    """What this process does at exit. BytePS is one per process, and so is this."""

    def __init__(self) -> None:
        self._abandoned = False

    def install(self) -> None:
        library = find_worker_library()
        if library is None:
            return  # a BytePS that `make byteps` did not build: it shuts down in its own way
        atexit.unregister(byteps_operations().shutdown)
        atexit.unregister(self._shut_down)
        atexit.register(self._shut_down)

    def abandon(self) -> None:
        library = find_worker_library()
        if library is not None and not self._abandoned:
            self._abandoned = True
            library.abandon()

    def _shut_down(self) -> None:
        library = find_worker_library()
        assert library is not None
        if self._abandoned or not library.shutdown(EXIT_DEADLINE_S):
            _remove_shared_memory()


_ending = _Ending()


def shut_down_at_exit() -> None:
    """Shut BytePS down when this process ends, with a deadline; in place of what byteps.torch.init registered.

    Does nothing with a BytePS that was not built by `make byteps`.
    """
    _ending.install()


def abandon() -> None:
    """Do not wait for anyone at exit: a worker or server is gone. To be called where a DeadlineError is raised."""
    _ending.abandon()


def in_time(call: Callable[[], object], purpose: str, deadline_s: float) -> None:
    """Run a call of BytePS's that waits for the job's other processes, and that cannot be taken back.

    purpose: what it is for, for the message. Raises what the call raises, and DeadlineError when it takes longer than
    deadline_s: BytePS is of no use to this process then.
    """
    outcome: concurrent.futures.Future[object] = concurrent.futures.Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except Exception as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="byteps", daemon=True).start()
    if not concurrent.futures.wait([outcome], deadline_s).done:
        abandon()
        raise DeadlineError(
            f"BytePS did not {purpose} within {deadline_s:g} s: the scheduler, a server or another worker is gone or "
            "was not started; end this process"
        )
    outcome.result()


def _remove_shared_memory() -> None:
    """Remove the buffers that BytePS's shutdown would have removed; names as in shared_memory.cc of `make byteps`."""
    port, worker = os.environ.get("DMLC_PS_ROOT_PORT", ""), os.environ.get("DMLC_WORKER_ID", "")
    for segment in Path("/dev/shm").glob(f"BytePS_*_{port}_{worker}_*"):
        segment.unlink(missing_ok=True)
