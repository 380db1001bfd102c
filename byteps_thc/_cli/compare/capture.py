"""Keeps gradients of a training script: python -m byteps_thc._cli.compare.capture FILE FIRST STEPS script.py ...

Runs the script as Python would, and looks at what its optimizer is given: after step FIRST of the first optimizer that
steps, the gradients of STEPS steps go to FILE, the seconds of the steps before to FILE with the suffix .times, and the
script ends.
"""

from __future__ import annotations

import itertools
import runpy
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook


class Capture:
    """Called before each step of any optimizer."""

    def __init__(self, path: Path, first: int, steps: int) -> None:
        self._path, self._first, self._steps = path, first, steps
        self._optimizer: Optimizer | None = None
        self.starts: list[float] = []
        self.gradients: list[dict[str, Tensor]] = []

    def __call__(self, optimizer: Optimizer, _args: Any, _options: Any) -> None:
        """See the module; SystemExit once it has all."""
        self._optimizer = self._optimizer or optimizer
        if optimizer is not self._optimizer:
            return
        if len(self.starts) < self._first:
            self.starts.append(time.perf_counter())
            return
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.gradients.append(
            {
                f"parameter {i}": parameter.grad.detach().float().cpu().clone()
                for i, parameter in enumerate(parameters)
                if parameter.grad is not None and not parameter.grad.is_sparse
            }
        )
        if len(self.gradients) == self._steps:
            times = [after - before for before, after in itertools.pairwise(self.starts)]
            torch.save(times, self._path.with_suffix(".times"))
            torch.save(self.gradients, self._path)
            # No Exception: scripts that mend errors and go on do not catch it.
            raise SystemExit(0)


def main() -> None:
    """Run the script that the arguments name."""
    path, first, steps, *script = sys.argv[1:]
    capture = Capture(Path(path), int(first), int(steps))
    register_optimizer_step_pre_hook(capture)
    sys.argv = script
    sys.path.insert(0, str(Path(script[0]).resolve().parent))
    try:
        runpy.run_path(script[0], run_name="__main__")
    except Exception as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename != script[0]:
            trace = trace.tb_next
        traceback.print_exception(error.with_traceback(trace))
        sys.exit(1)
    taken = len(capture.starts) + len(capture.gradients)
    if not taken:
        sys.exit(f"{script[0]} called no optimizer.step(): call it on a torch optimizer, in the script's own process")
    sys.exit(f"{script[0]} ended after {taken} of {int(first) + int(steps)} steps: lower --steps")


if __name__ == "__main__":
    main()
