"""All targets, and the reasons why some cannot run on this machine."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from switch_lab.targets import bmv2
from switch_lab.targets.model import tna, v1model
from switch_lab.targets.target import Target
from switch_lab.targets.thc_ps import ThcPsTarget


@dataclass(frozen=True)
class Kind:
    name: str
    what: str
    make: Callable[[], Target]
    why_missing: Callable[[], str | None] = lambda: None
    """returns the programs that it lacks; None: it can run"""
    is_switch: bool = True


KINDS = (
    Kind("thc-ps", "software parameter server", ThcPsTarget, is_switch=False),
    Kind("v1model", "v1model program in the P4 model", v1model),
    *(Kind(f"tna-{pipes}", f"TNA program in the P4 model, {pipes} pipes", partial(tna, pipes)) for pipes in (1, 2, 4)),
    Kind("bmv2", "v1model program in simple_switch", bmv2.Bmv2Target, bmv2.why_missing),
)
