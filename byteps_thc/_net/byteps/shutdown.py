"""BytePS's shutdown when this process exits, with a deadline.

BytePS's shutdown, which it registers to run at exit, waits for all workers and servers, for ever when one has died.
Here a process waits for a deadline, and then ends with the exit status that it was about to have.
"""

from __future__ import annotations

import atexit
import os
from pathlib import Path

from byteps_thc._net.byteps.library import byteps_operations
from byteps_thc._net.byteps.worker_library import find_worker_library

#: Seconds that other workers may take to get to their end after this one.
EXIT_DEADLINE_S = 60.0


class _AtExit:
    """What this process does at exit. BytePS is one per process, and so is this."""

    def __init__(self) -> None:
        self._skipped = False

    def install(self) -> None:
        library = find_worker_library()
        if library is None:
            return  # a BytePS that `make byteps` did not build: it shuts down in its own way
        atexit.unregister(byteps_operations().shutdown)
        atexit.unregister(self._shut_down)
        atexit.register(self._shut_down)

    def skip_shutdown(self) -> None:
        library = find_worker_library()
        if library is not None and not self._skipped:
            self._skipped = True
            library.skip_shutdown()

    def _shut_down(self) -> None:
        library = find_worker_library()
        assert library is not None
        if self._skipped or not library.shutdown(EXIT_DEADLINE_S):
            _remove_shared_memory()


_at_exit = _AtExit()


def shut_down_at_exit() -> None:
    """Shut BytePS down when this process ends, with a deadline; in place of what byteps.torch.init registered.

    Does nothing with a BytePS that was not built by `make byteps`.
    """
    _at_exit.install()


def skip_shutdown_at_exit() -> None:
    """Do not wait for anyone at exit: a worker or server is gone. To be called where a DeadlineError is raised."""
    _at_exit.skip_shutdown()


def _remove_shared_memory() -> None:
    """Remove the buffers that BytePS's shutdown would have removed; names as in shared_memory.cc of `make byteps`."""
    port, worker = os.environ.get("DMLC_PS_ROOT_PORT", ""), os.environ.get("DMLC_WORKER_ID", "")
    for segment in Path("/dev/shm").glob(f"BytePS_*_{port}_{worker}_*"):
        segment.unlink(missing_ok=True)
