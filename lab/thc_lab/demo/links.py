"""Links of the demo's workers: shaped, between network namespaces, if this process is root; else loopback."""

import contextlib
import subprocess
from dataclasses import dataclass

from byteps_thc._base.errors import ConfigurationError, ThcError
from thc_lab.shaped_network import Host, ShapedNetwork

_NO_GAIN = "Links: loopback, no limit: times show no gain"


@dataclass(frozen=True)
class Links:
    """hosts: one per worker, each behind its link; empty: loopback. sentence: for the report."""

    hosts: tuple[Host, ...]
    sentence: str


#: Nothing to say about them.
NO_LINKS = Links((), "")


def choose_links(workers: int, mbit: float, stack: contextlib.ExitStack, *, required: bool) -> Links:
    """Lay a link to a namespace per worker.

    workers: number of links.
    mbit: Mb/s in each direction; 0: loopback.
    stack: removes the namespaces.
    required: raise ConfigurationError if this process cannot; otherwise fall back to loopback.
    """
    if not mbit:
        return Links((), f"{_NO_GAIN} (--link-mbit 0).")
    try:
        with contextlib.ExitStack() as made:
            network = made.enter_context(ShapedNetwork(workers, "demo-"))
            for host in network.hosts:
                host.shape(mbit * 1e6)
            stack.enter_context(made.pop_all())
    except (ThcError, OSError, subprocess.SubprocessError) as error:
        if required:
            raise ConfigurationError(f"--link-mbit {mbit:g}: {error}; run as root, or pass --link-mbit 0") from error
        return Links((), f"{_NO_GAIN} ({error}).")
    limit = f"{mbit:g} Mb/s to and from each worker's host"
    return Links(tuple(network.hosts), f"Links: {limit}, in network namespaces of this machine.")
