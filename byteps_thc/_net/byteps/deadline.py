"""Calls of BytePS that wait for other processes, and how long they may."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable

from byteps_thc._net.byteps.shutdown import skip_shutdown_at_exit
from byteps_thc._scheme.errors import DeadlineError


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
