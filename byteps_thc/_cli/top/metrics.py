"""Counters of a thc-ps, read from its metrics (thc-ps --metrics-port)."""

from __future__ import annotations

import contextlib
import http.client
import math
import re
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass

from byteps_thc._scheme.errors import ConfigurationError, TransportError

_LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
#: Of an answer; a thc-ps says some 4 KiB about each job.
_MAX_BYTES = 64 << 20
#: Of packets that no job claims.
NO_JOB = "none"
#: Of errors that tell a worker who asks only for whom it waits: no trouble.
INCOMPLETE = "incomplete"


@dataclass(frozen=True)
class Scrape:
    """Values by metric and job, summed over all other labels, and those errors that are INCOMPLETE.

    seconds: of a clock that only moves forward.
    """

    seconds: float
    values: dict[tuple[str, str], float]

    @property
    def jobs(self) -> list[str]:
        """Those that exist at this moment, by number; labels that are no numbers follow."""
        return sorted((job for metric, job in self.values if metric == "thc_ps_workers"), key=_by_number)

    def get(self, metric: str, job: str = "") -> float:
        """0 for what is not there: a job that has just begun has no counters yet."""
        return self.values.get((metric, job), 0.0)


def url_of(address: str) -> str:
    """Read HOST:PORT, HOST or :PORT; ConfigurationError for anything else."""
    match = re.fullmatch(r"([\w.-]*|\[[0-9a-fA-F:.]+\])(?::(\d{1,5}))?", address)
    if not address or not match:
        raise ConfigurationError(f"{address!r} is not an address of metrics: pass HOST:PORT, such as 127.0.0.1:9464")
    return f"http://{match[1] or '127.0.0.1'}:{match[2] or 9464}/metrics"


def scrape(url: str, timeout_s: float) -> Scrape:
    """Ask a server. TransportError when it does not answer, each wait being limited, or something else answers."""
    try:
        parts = urllib.parse.urlsplit(url)
        with contextlib.closing(http.client.HTTPConnection(parts.netloc, timeout=timeout_s)) as connection:
            connection.request("GET", parts.path)
            with connection.getresponse() as answer:
                data = answer.read(_MAX_BYTES + 1)
        if answer.status != http.HTTPStatus.OK:
            raise http.client.HTTPException(f"{answer.status} {answer.reason}")
        if len(data) > _MAX_BYTES:
            raise http.client.HTTPException(f"it sends more than {_MAX_BYTES >> 20} MiB")
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise TransportError(f"{url} does not answer: {reason}. Start thc-ps there with --metrics-port") from None
    values: dict[tuple[str, str], float] = {}
    for metric, labels, value in _samples(data.decode(errors="replace")):
        job = _printable(labels.get("job", ""))
        names = [metric, INCOMPLETE] if labels.get("reason") == INCOMPLETE else [metric]
        for name in names:
            values[name, job] = values.get((name, job), 0.0) + value
    if ("thc_ps_uptime_seconds", "") not in values:
        raise TransportError(f"{url} answers, but is not a thc-ps: pass the port of thc-ps --metrics-port")
    return Scrape(time.monotonic(), values)


def _by_number(job: str) -> tuple[bool, int, str]:
    return not job.isdecimal(), int(job) if job.isdecimal() else 0, job


def _printable(text: str) -> str:
    """Return a text without what a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in text.splitlines():
        if match := _LINE.match(line):
            with contextlib.suppress(ValueError):
                value = float(match[3])
                if math.isfinite(value):
                    yield match[1], dict(_LABEL.findall(match[2] or "")), value
