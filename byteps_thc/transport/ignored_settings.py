"""Settings that only ranks which all need the sums look at: a warning where others are given them."""

from __future__ import annotations

from byteps_thc.config import ThcConfig
from byteps_thc.transport.warn_once import warn_once


def warn_of_ignored_bits(config: ThcConfig, user: str, worker: int) -> None:
    """Say once, on worker 0, that `user` takes no notice of total_bits or down_bits, where they are given."""
    bits = {"total_bits": config.total_bits, "down_bits": config.down_bits}
    given = [f"{name}={value}" for name, value in bits.items() if isinstance(value, int)]
    if given and worker == 0:
        warn_once(f"{user} requantize no sums and take no notice of {given[0]}: codes have {config.code_bits} bits")
