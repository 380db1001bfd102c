"""A user's gradients: from files, or out of a training script that runs for some steps."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from byteps_thc.errors import ConfigurationError, InputError

#: One for each worker: the same names and shapes.
Gradients = list[dict[str, Tensor]]
_HOW = "torch.save() of a dict of gradients by name, {name: p.grad for name, p in model.named_parameters()}, or a list"


def of_files(paths: Sequence[Path]) -> Gradients:
    """Read a worker's gradient from each file, or those of several workers from one.

    Raises ConfigurationError for files that hold something else, InputError for workers that do not fit together.
    """
    found: Gradients = []
    for path in paths:
        loaded = _loaded(path)
        for one in loaded if isinstance(loaded, list | tuple) else [loaded]:
            if not isinstance(one, dict) or not all(isinstance(value, Tensor) for value in one.values()):
                raise ConfigurationError(f"--grads {path} holds {type(one).__name__}; it takes {_HOW} of them")
            if odd := [name for name, value in one.items() if value.layout != torch.strided or value.is_complex()]:
                raise ConfigurationError(f"--grads {path}: {odd[0]!r} is sparse or complex; it takes dense gradients")
            found.append({str(name): value.detach().float() for name, value in one.items() if value.numel()})
    return checked(found)


def _loaded(path: Path) -> object:
    """Return what torch.save() wrote to a file; ConfigurationError for any other file."""
    reason = "the file is empty"
    try:
        if path.stat().st_size:
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of bytes that are no pickle it may be any
        reason = next(iter(str(error).splitlines()), type(error).__name__)
    raise ConfigurationError(f"--grads {path}: {reason}; it takes {_HOW} of them")


def of_script(script: Path, arguments: Sequence[str], *, steps: int, workers: int, timeout_s: float) -> Gradients:
    """Run a script; return the gradients of the last `workers` of `steps` steps, which stand for as many workers'.

    Raises ConfigurationError when it ends before, or takes longer.
    """
    if not script.is_file():
        raise ConfigurationError(f"--script {script}: there is no such file")
    if steps < workers:
        raise ConfigurationError(f"--steps must be at least --workers ({workers}), not {steps}: a step for each worker")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gradients.pt"
        command = [sys.executable, "-m", "byteps_thc.tools.compare.capture", str(path), str(steps - workers)]
        try:
            run = subprocess.run([*command, str(workers), str(script), *arguments], check=False, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise ConfigurationError(
                f"--script {script} took fewer than {steps} steps in {timeout_s:g} s: fewer --steps or more --timeout-s"
            ) from None
        if not path.exists():
            raise ConfigurationError(
                f"--script {script} ended with exit code {run.returncode} before step {steps} of its optimizer: see "
                "above; does it call optimizer.step() of a torch optimizer in its own process?"
            )
        return of_files([path])


def checked(gradients: Gradients) -> Gradients:
    """Raise InputError unless they are those of several workers, finite and not all zero."""
    if len(gradients) < 2:
        raise InputError("gradients of one worker: an average needs at least two (a file for each, or a list in one)")
    first = {name: value.shape for name, value in gradients[0].items()}
    for worker, own in enumerate(gradients):
        if {name: value.shape for name, value in own.items()} != first:
            raise InputError(f"worker {worker}'s gradients have other names or shapes than worker 0's")
        if bad := next((name for name, value in own.items() if not value.isfinite().all()), None):
            raise InputError(f"worker {worker}'s gradient {bad!r} has NaN or infinity")
    if not any(value.any() for own in gradients for value in own.values()):
        raise InputError("all gradients are 0")
    return gradients


def flat(gradients: Gradients) -> list[Tensor]:
    """float32[coordinates] of each worker, tensors one after the other."""
    return [torch.cat([value.flatten() for value in own.values()]) for own in gradients]
