"""Ends kept processes with everything that they have started."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable

from thc_lab.testbed.keeper.records import Record, Records, is_of, pids_of, state_of

_POLL_S = 0.05
#: From SIGKILL to the end of a process that the kernel does not hold.
_KILLED_TIMEOUT_S = 10.0
#: From the end of a process to its exit status.
_STATUS_TIMEOUT_S = 10.0


def stop(records: Records, names: Iterable[str], grace_s: float) -> list[str]:
    """SIGTERM, after grace_s SIGKILL; names of those that were there. TimeoutError for what cannot be killed."""
    found = [record for name in names if (record := records.read(name)) is not None]
    running = [record for record in found if pids_of(record)]
    end_all(running, grace_s)
    _await_status(records, running)
    return [record.name for record in running]


def end_all(records: list[Record], grace_s: float) -> None:
    """End all processes of these records; TimeoutError names those that SIGKILL does not end."""
    deadline = time.monotonic() + grace_s
    if grace_s > 0:
        _signal(records, signal.SIGTERM)
    while _alive(records) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    deadline = time.monotonic() + _KILLED_TIMEOUT_S
    while left := _alive(records):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} do not end on SIGKILL: the kernel holds them; see dmesg")
        _signal(records, signal.SIGKILL)
        time.sleep(_POLL_S)


def _alive(records: list[Record]) -> list[int]:
    return [pid for record in records for pid in pids_of(record)]


def _signal(records: list[Record], number: signal.Signals) -> None:
    for record in records:
        for pid in pids_of(record):
            with contextlib.suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                try:
                    # Between the search and now the number may have become another process's; now it cannot.
                    if is_of(pid, record):
                        signal.pidfd_send_signal(descriptor, number)
                finally:
                    os.close(descriptor)


def _await_status(records: Records, ended: list[Record]) -> None:
    """Their supervisors are about to write it; one that was killed never does."""
    deadline = time.monotonic() + _STATUS_TIMEOUT_S
    for record in ended:
        while state_of(record, records) == "running" and time.monotonic() < deadline:
            time.sleep(_POLL_S)
