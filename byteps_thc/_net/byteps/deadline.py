"""Calls of BytePS that wait for other processes, and how long they may."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable

from byteps_thc._net.byteps.shutdown import skip_shutdown_at_exit
from byteps_thc._scheme.environment import variable
from byteps_thc._scheme.errors import ConfigurationError, DeadlineError

#: Seconds that a wait takes at most, when THC_DEADLINE_S is not set.
DEFAULT_DEADLINE_S = 600.0


def default_deadline_s() -> float:
    """Seconds of THC_DEADLINE_S, or 600; ConfigurationError when it is not a positive number."""
    text = variable("DEADLINE_S") or str(DEFAULT_DEADLINE_S)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ConfigurationError(f"THC_DEADLINE_S must be a number of seconds, not {text!r}")
    return seconds


def run_with_deadline(call: Callable[[], object], purpose: str, deadline_s: float) -> None:
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
        skip_shutdown_at_exit()
        raise DeadlineError(
            f"BytePS did not {purpose} within {deadline_s:g} s: the scheduler, a server or another worker is gone or "
            "was not started; end this process"
        )
    outcome.result()
