"""Signals that end a program end it in order: its files, processes and namespaces are removed first."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """Turn the first signal that ends the program into an exception, so that all contexts are left; main thread only.

    SIGINT raises KeyboardInterrupt; SIGTERM and SIGHUP raise SystemExit with the exit code of shells, 128 + signal.
    More signals change nothing. A signal that was ignored before (nohup) stays so.
    """

    def end(number: int, _: FrameType | None) -> None:
        for other in handled:
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    handled = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = [(number, signal.signal(number, end)) for number in handled]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
