"""Metrics of a thc-ps, scraped as by Prometheus."""

import re
import time
import urllib.request

PATIENCE_S = 30.0


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as response:
        return str(response.read().decode())


def scrape_with(awaited: str, port: int) -> str:
    """Return the metrics once they contain a text, or after a while."""
    deadline = time.monotonic() + PATIENCE_S
    while awaited not in (text := scrape(port)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return text


def total(port: int, name: str, awaited: int) -> int:
    """Return the sum of a metric's rows once it is `awaited` or more, or after a while.

    The server publishes its counters some times a second.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        rows = re.findall(rf"^{name}\{{.*\}} (\S+)$", scrape(port), re.MULTILINE)
        found = sum(int(float(row)) for row in rows)
        if found >= awaited or time.monotonic() >= deadline:
            return found
        time.sleep(0.01)
