"""The `thc top` command."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.live import Live

from byteps_thc._cli.consoles import table_console
from byteps_thc._cli.top.metrics import Scrape, scrape, url_of
from byteps_thc._cli.top.rates import lines, view
from byteps_thc._scheme.errors import ConfigurationError, TransportError

_TIMEOUT_S = 5.0


def top(
    servers: Annotated[
        list[str] | None, typer.Argument(metavar="HOST:PORT...", help="Metrics of thc-ps. Default: 127.0.0.1:9464.")
    ] = None,
    interval_s: Annotated[float, typer.Option("--interval", help="Seconds between two looks.")] = 1.0,
    count: Annotated[int | None, typer.Option(help="Looks to take. Default: until it is interrupted.")] = None,
) -> None:
    """Show jobs, workers and rates of running parameter servers (thc-ps --metrics-port 9464), until Ctrl-C."""
    if not 0.1 <= interval_s <= 3600:
        raise ConfigurationError(f"--interval must be in 0.1 .. 3600 seconds, not {interval_s:g}")
    if count is not None and count < 1:
        raise ConfigurationError(f"--count must be at least 1, not {count}")
    urls = {address: url_of(address) for address in servers or ["127.0.0.1:9464"]}
    before = _scrape_all(urls)
    console, looks = table_console(), 0
    with Live(console=console, auto_refresh=False) as live:
        try:
            while count is None or looks < count:
                time.sleep(interval_s)
                after = _scrape_all(urls)
                found = [line for address in after for line in lines(address, before.get(address), after[address])]
                before, looks = after, looks + 1
                shown = view(found, list(after), [address for address in urls if address not in after])
                if console.is_terminal:
                    live.update(shown, refresh=True)
                else:
                    console.print(shown)
        except KeyboardInterrupt:
            pass


def _scrape_all(urls: dict[str, str]) -> dict[str, Scrape]:
    """Return what those say that answer; TransportError when none does."""
    found, errors = {}, []
    for address, url in urls.items():
        try:
            found[address] = scrape(url, _TIMEOUT_S)
        except TransportError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return found
