"""What `make byteps` adds to BytePS's workers: byteps/plugins/thc_worker.so (byteps_thc/csrc/byteps/thc_worker.cc)."""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Mapping

from byteps_thc._net.byteps.library import byteps_operations
from byteps_thc._scheme.errors import ConfigurationError


class WorkerLibrary:
    """The functions of the library. Names are those that users give to push_pull."""

    def __init__(self, library: ctypes.CDLL) -> None:
        strings = ctypes.POINTER(ctypes.c_char_p)
        self._declare = library.thc_byteps_declare
        self._declare.argtypes = (ctypes.c_char_p, strings, strings, ctypes.c_int)
        self._declare.restype = None
        self._skip_shutdown = library.thc_byteps_abandon
        self._skip_shutdown.restype = None
        self._shutdown = library.thc_byteps_shutdown
        self._shutdown.argtypes = (ctypes.c_double,)

    def declare(self, name: str, settings: Mapping[str, str]) -> None:
        """Declare a tensor that BytePS compresses with these settings (no spaces in them), before its first push."""
        keys = (ctypes.c_char_p * len(settings))(*(key.encode() for key in settings))
        values = (ctypes.c_char_p * len(settings))(*(value.encode() for value in settings.values()))
        self._declare(_byteps_name(name), keys, values, len(settings))

    def skip_shutdown(self) -> None:
        """Have this process end without BytePS's shutdown; at most once."""
        self._skip_shutdown()

    def shutdown(self, deadline_s: float) -> bool:
        """Shut BytePS down; False when that took too long, and the process will end without it."""
        return bool(self._shutdown(deadline_s))


@functools.cache
def find_worker_library() -> WorkerLibrary | None:
    """Load the library; None when the installed BytePS has none.

    ConfigurationError when BytePS does not import, or was built with another version of this library.
    """
    byteps_operations()  # the symbols that the library needs
    try:
        library = importlib.import_module("byteps.plugins").load_for_worker("thc")
    except (ImportError, OSError):
        return None
    try:
        return WorkerLibrary(library)
    except AttributeError as error:
        raise ConfigurationError(
            f"BytePS was built for another version of byteps_thc ({error}): build it again with 'make byteps'"
        ) from error


def worker_library() -> WorkerLibrary:
    """Load the library; ConfigurationError when BytePS was not built by `make byteps`."""
    library = find_worker_library()
    if library is None:
        raise ConfigurationError("this BytePS was built without THC's compressor: build it with 'make byteps'")
    return library


def _byteps_name(name: str) -> bytes:
    return f"byteps.{name}".encode()
