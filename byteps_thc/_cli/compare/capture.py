"""Keeps gradients of a training script: python -m byteps_thc._cli.compare.capture FILE FIRST STEPS script.py ...

Runs the script until the first optimizer has made FIRST + STEPS steps. FILE gets the gradients of all optimizers in the
last STEPS steps, and FILE with the suffix .times the seconds of the FIRST steps.
"""

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

from byteps_thc._engine.parameters import real_view


class Capture:
    """Called before each step of any optimizer. A training step begins when the first optimizer steps."""

    def __init__(self, path: Path, first: int, steps: int) -> None:
        self.path, self._first, self._steps = path, first, steps
        self._optimizer: Optimizer | None = None
        self._names: dict[Tensor, str] = {}
        self._calls: list[int] = []  # of each training step
        self.starts: list[float] = []
        self.gradients: list[dict[str, Tensor]] = []

    def __call__(self, optimizer: Optimizer, _args: Any, _options: Any) -> None:
        """Take the gradients; SystemExit once as many optimizers have stepped as in the step before the last."""
        self._optimizer = self._optimizer or optimizer
        if optimizer is self._optimizer:
            self.end_if_complete()
            self.starts.append(time.perf_counter())
            self._calls.append(0)
            if len(self.starts) > self._first:
                self.gradients.append({})
        self._calls[-1] += 1
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = self._names.setdefault(parameter, f"parameter {len(self._names)}")
                if self.gradients and parameter.grad is not None and not parameter.grad.is_sparse:
                    self.gradients[-1][name] = real_view(parameter.grad.detach()).float().cpu().clone()
        if self._calls[-1] >= self._calls[-2:][0]:
            self.end_if_complete()

    def end_if_complete(self) -> None:
        """Save the gradients and raise SystemExit if all steps have begun; their common parameters count."""
        if len(self.gradients) < self._steps:
            return
        common = set.intersection(*map(set, self.gradients))
        if some := sorted(set().union(*self.gradients) - common):
            print(f"only some steps have gradients of {', '.join(some)}: these are left out", file=sys.stderr)
        starts = self.starts[: self._first]
        torch.save([after - before for before, after in itertools.pairwise(starts)], self.path.with_suffix(".times"))
        torch.save([{name: own[name] for name in own if name in common} for own in self.gradients], self.path)
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
    except SystemExit:
        if not capture.path.exists():
            capture.end_if_complete()
        raise
    except Exception as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename != script[0]:
            trace = trace.tb_next
        traceback.print_exception(error.with_traceback(trace))
        sys.exit(1)
    capture.end_if_complete()
    taken = len(capture.starts)
    if not taken:
        sys.exit(f"{script[0]} called no optimizer.step(): call it on a torch optimizer, in the script's own process")
    sys.exit(f"{script[0]} ended after {taken} of {int(first) + int(steps)} steps: lower --steps")


if __name__ == "__main__":
    main()
