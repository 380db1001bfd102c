"""Stub of the first commit: the description of a testbed, a TOML file."""

from __future__ import annotations

from pathlib import Path


class Testbed:
    """A testbed; what is in it follows."""


def load(path: Path) -> Testbed:
    """Read a TOML file; ConfigurationError names it, the key and what to change."""
    raise NotImplementedError(path)
