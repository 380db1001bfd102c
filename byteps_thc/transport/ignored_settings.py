"""A setting that only ranks which send averages look at: a warning where others are given it."""

from __future__ import annotations

from byteps_thc.config import ThcConfig
from byteps_thc.settings import warn_once


def warn_of_ignored_bits(config: ThcConfig, user: str, worker: int) -> None:
    """Say once, on worker 0, that down_bits have no effect on `user`, where they are given."""
    if config.down_bits is not None and worker == 0:
        warn_once(f"down_bits={config.down_bits} has no effect on {user}: omit it")
