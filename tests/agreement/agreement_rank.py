"""A rank that differs from the others, in one way in each training; and gradients with values that are no numbers.

settings: {"kernels": "host" or "device"; "front_end"; "differences": names; "odd": the ranks that differ}. Reports the
error of every difference and whether parameters have changed; for values, the averages of steps with them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from device_ranks import take_cpu_for_device_of_ranks
from torch import Tensor
from trainings import FRONT_ENDS, Setup, Training

from thc_lab.ranks import Rank, joined_rank

_A_B = Setup()
_SCALED = Setup(scale=2.0)


@dataclass(frozen=True)
class Difference:
    """usual, odd: trainings of ranks. ahead: counters of the checkpoint that the odd rank loads after a step, when
    all load one. later: loss scale of the odd rank after a step; None: it stays.
    """

    odd: Setup = _A_B
    usual: Setup = _A_B
    ahead: Mapping[str, int] = field(default_factory=dict)
    later: float | None = None


def _names(*names: str) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys(names, (40, 64))


_EXACT_C_D = Setup(policy={"exclude": ("c", "d")})
_WARM_UP = Setup(policy={"warmup_steps": 5})
_EXACT = Setup(policy={"bypass_elements": 10_000})
DIFFERENCES = {
    "none": Difference(),
    "shape": Difference(Setup(shapes={"a": (40, 64), "b": (41, 64)})),
    "turned": Difference(Setup(shapes={"a": (40, 64), "b": (64, 40)})),
    "order": Difference(Setup(shapes=_names("b", "a"))),
    "name": Difference(Setup(shapes=_names("a", "c"))),
    "dtype": Difference(Setup(dtype=torch.bfloat16)),
    "round": Difference(ahead={"round": 7}),
    "loss scale": Difference(replace(_SCALED, scale=1024.0), _SCALED),
    "loss scale, later": Difference(_SCALED, _SCALED, later=1024.0),
    "no loss scale": Difference(_A_B, _SCALED),
    "bits": Difference(Setup(codes={"bits": 5})),
    "policy": Difference(Setup(policy={"bypass_elements": 64})),
    # One rank compresses a gradient, another sends it exactly.
    "one is small": Difference(replace(_EXACT_C_D, shapes=_names("c", "d")), _EXACT_C_D),
    "one is in warm-up": Difference(_WARM_UP, _WARM_UP, ahead={"step": 10}),
    "names in warm-up": Difference(replace(_WARM_UP, shapes=_names("a", "c")), _WARM_UP),
    # Nothing is compressed.
    "names of small ones": Difference(replace(_EXACT, shapes=_names("a", "c")), _EXACT),
    "scale of small ones": Difference(replace(_EXACT, scale=1024.0), replace(_EXACT, scale=2.0)),
    "dtype of small ones": Difference(replace(_EXACT, dtype=torch.bfloat16), _EXACT),
    "shapes of small ones": Difference(replace(_EXACT, shapes={"a": (40, 64), "b": (41, 64)}), _EXACT),
}


def gradients(rank: Rank, step: int, setup: Setup) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(100 * step + rank.rank)
    return {name: torch.randn(shape, generator=random) for name, shape in setup.shapes.items()}


def differ(rank: Rank, front_end: str, name: str) -> dict[str, Any]:
    """Train until an error; `changed`: whether parameters are other ones than when ranks began to differ."""
    difference = DIFFERENCES[name]
    odd = rank.rank in rank.settings["odd"]
    setup = difference.odd if odd else difference.usual
    training: Training | None = None
    error, before = "", list[Tensor]()
    try:
        training = FRONT_ENDS[front_end](rank.ranks, setup)
        comes_later = bool(difference.ahead) or difference.later is not None
        for step in range(3):  # a device tells when the next step begins
            if step <= comes_later:
                before = training.parameters()
            training.step(gradients(rank, step, setup))
            if step == 0 and difference.ahead:
                training.change_state(**(difference.ahead if odd else {}))
            if step == 0 and difference.later is not None and odd:
                training.change_scale(difference.later)
    except Exception as failed:  # of any kind: it comes through torch
        error = f"{type(failed).__name__}: {failed}"
    changed = False
    if training is not None:
        changed = any(not torch.equal(*pair) for pair in zip(before, training.parameters(), strict=True))
        training.handle.close()
    return {"error": error, "changed": changed}


def values(rank: Rank, front_end: str) -> dict[str, Any]:
    """Averages of steps whose gradients have zeros, and NaN or Inf on a rank, and of one that is as others."""
    training = FRONT_ENDS[front_end](rank.ranks, _A_B)
    last = rank.rank == rank.ranks - 1
    averages: dict[str, dict[str, Tensor]] = {}
    for step, name in enumerate(("zeros", "zeros on one rank", "nan", "inf", "zeros beside nan", "after")):
        own = gradients(rank, step, _A_B)
        if name in ("zeros", "zeros beside nan") or (name == "zeros on one rank" and last):
            own["a"].zero_()
        if last and name in ("nan", "inf", "zeros beside nan"):
            own["b"][3, 5] = float("inf" if name == "inf" else "nan")
        averages[name] = training.step(own)
    training.handle.close()
    return averages


with joined_rank(timeout_s=120) as rank:
    if rank.settings["kernels"] == "device":
        take_cpu_for_device_of_ranks()
    front_end = rank.settings["front_end"]
    differences: dict[str, dict[str, Any]] = {}
    for name in rank.settings["differences"]:
        differences[name] = differ(rank, front_end, name)
        dist.barrier()
    rank.report({"differences": differences, "values": values(rank, front_end)})
