"""Everything byteps_thc raises. The C++ modules translate thc/errors.h to these classes."""


class ThcError(Exception):
    """Base of all errors of this package, which tracebacks and pickles name by their public module."""

    def __init_subclass__(cls) -> None:
        if cls.__module__ == __name__:
            cls.__module__ = "byteps_thc"


ThcError.__module__ = "byteps_thc"


class ConfigurationError(ThcError, ValueError):
    """A setting is out of range, or two settings contradict each other (g * n overflow, unknown table)."""


class InputError(ThcError, ValueError):
    """An array has the wrong shape, dtype or memory layout."""


class TransportError(ThcError, OSError):
    """The network or a device failed: port in use, no packet buffers, no route."""


class DpdkUnavailableError(TransportError):
    """DPDK is missing in this build, its libraries are not installed, or EAL did not start."""


class ServerRefusedError(TransportError):
    """The server rejected this worker: other settings or table, duplicate worker id, or too many jobs."""


class RestartError(TransportError):
    """The server or another worker restarted. Results of this round are lost."""


class CheckpointError(ThcError, OSError):
    """A checkpoint is damaged, incomplete, or has no compression state under this name."""


class DeadlineError(ThcError, TimeoutError):
    """A wait ran out of time.

    message: the text of the error.
    slot: first packet position without a result.
    round: round of that packet.
    missing_workers: ids of the workers missing at the server's last answer; empty without an answer.
    """

    def __init__(self, message: str, slot: int = 0, round: int = 0, missing_workers: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.slot = slot
        self.round = round
        self.missing_workers = missing_workers
