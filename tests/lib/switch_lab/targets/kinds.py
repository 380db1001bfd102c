"""Which targets there are, and which of them can run on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from switch_lab.targets.target import Target
from switch_lab.targets.thc_ps import ThcPsTarget


@dataclass(frozen=True)
class Kind:
    """A kind of target."""

    name: str
    what: str
    make: Callable[[], Target]
    why_missing: Callable[[], str | None] = lambda: None
    """What must be installed for it to run; None: it can run."""
    is_switch: bool = True


KINDS = (Kind("thc-ps", "the software parameter server", ThcPsTarget, is_switch=False),)
