"""Imports the installed BytePS and `make byteps`'s additions on first use, and gives its calls deadlines.

BytePS's own shutdown at exit waits for all workers and servers, for ever if one has died.
"""

import atexit
import ctypes
import functools
import importlib
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

from byteps_thc._base.errors import ConfigurationError, DeadlineError
from byteps_thc._net.ending import within


@functools.cache
def byteps_operations() -> ModuleType:
    """Return byteps.torch.ops; ConfigurationError if BytePS is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return importlib.import_module("byteps.torch.ops")
    except ImportError as error:
        raise ConfigurationError(
            f"BytePS does not import ({error}): build it into this Python with 'make byteps'"
        ) from (error)


def declare_tensor(name: str, settings: Mapping[str, str]) -> None:
    """Declare a tensor of push_pull and its compressor settings (without spaces), before its first push.

    Raises worker_library()'s errors.
    """
    keys = (ctypes.c_char_p * len(settings))(*(key.encode() for key in settings))
    values = (ctypes.c_char_p * len(settings))(*(value.encode() for value in settings.values()))
    worker_library().thc_byteps_declare(f"byteps.{name}".encode(), keys, values, len(settings))


@functools.cache
def find_worker_library() -> ctypes.CDLL | None:
    """Load the library; None if BytePS has none. Raises ConfigurationError without BytePS, or for another version."""
    byteps_operations()  # has symbols that the library needs
    try:
        library: ctypes.CDLL = importlib.import_module("byteps.plugins").load_for_worker("thc")
    except (ImportError, OSError):
        return None
    try:
        strings = ctypes.POINTER(ctypes.c_char_p)
        library.thc_byteps_declare.argtypes = (ctypes.c_char_p, strings, strings, ctypes.c_int)
        library.thc_byteps_declare.restype = None
        library.thc_byteps_abandon.restype = None
        library.thc_byteps_shutdown.argtypes = (ctypes.c_double,)
    except AttributeError as error:
        raise ConfigurationError(
            f"BytePS was built for another version of byteps_thc ({error}): build it again with 'make byteps'"
        ) from error
    return library


def worker_library() -> ctypes.CDLL:
    """Load the library; ConfigurationError if BytePS was not built by `make byteps`."""
    library = find_worker_library()
    if library is None:
        raise ConfigurationError("this BytePS was built without THC's compressor: build it with 'make byteps'")
    return library


#: Seconds for other workers to end after this one.
EXIT_DEADLINE_S = 60.0
_skipped = threading.Event()


def shut_down_at_exit() -> None:
    """Shut BytePS down when this process ends, with a deadline, instead of byteps.torch.init's exit handler."""
    if find_worker_library() is not None:  # a BytePS without the library shuts itself down
        atexit.unregister(byteps_operations().shutdown)
        atexit.unregister(_shut_down)
        atexit.register(_shut_down)


def skip_shutdown_at_exit() -> None:
    """Wait for nobody at exit: a worker or server is gone. Call it where a DeadlineError is raised."""
    library = find_worker_library()
    if library is not None and not _skipped.is_set():
        _skipped.set()
        library.thc_byteps_abandon()  # at most once


def _shut_down() -> None:
    if _skipped.is_set() or not worker_library().thc_byteps_shutdown(EXIT_DEADLINE_S):
        # The buffers that BytePS's shutdown would remove, by the names of shared_memory.cc of `make byteps`.
        port, worker = os.environ.get("DMLC_PS_ROOT_PORT", ""), os.environ.get("DMLC_WORKER_ID", "")
        for segment in Path("/dev/shm").glob(f"BytePS_*_{port}_{worker}_*"):
            segment.unlink(missing_ok=True)


def run_with_deadline(call: Callable[[], object], purpose: str, deadline_s: float) -> None:
    """Run a BytePS call that waits for the job's other processes and cannot be cancelled.

    purpose: for the message. Raises the call's errors, and DeadlineError after deadline_s, which ends BytePS here.
    """
    outcome = within(deadline_s, call, "byteps")
    if outcome is None:
        skip_shutdown_at_exit()
        raise DeadlineError(
            f"BytePS did not {purpose} within {deadline_s:g} s: the scheduler, a server or another worker is gone or "
            "was not started; end this process"
        )
    outcome.result()
