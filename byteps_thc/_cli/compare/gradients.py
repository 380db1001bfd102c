"""A user's gradients: from files, or out of a training script that runs for some steps."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from byteps_thc._cli.compare import WORKERS
from byteps_thc._scheme.errors import ConfigurationError, InputError

#: One for each worker: the same names and shapes.
Gradients = list[dict[str, Tensor]]
#: Of layers that gradients are made with, and rows of a worker.
_WIDTH, _ROWS = 1024, 16
_MOST_WORKERS = 8
_HOW = "torch.save() of a dict of gradients, {name: p.grad for name, p in model.named_parameters()}, or a list of dicts"


def of_files(paths: Sequence[Path]) -> Gradients:
    """Read a worker's gradient from each file, or those of several workers from one.

    Raises ConfigurationError for files that hold something else, InputError for workers that do not fit together.
    """
    found: Gradients = []
    for path in paths:
        loaded = _loaded(path)
        for one in loaded if isinstance(loaded, list | tuple) else [loaded]:
            if not isinstance(one, dict) or not all(isinstance(value, Tensor) for value in one.values()):
                kind = ("" if one is loaded else "a list with ") + type(one).__name__
                raise ConfigurationError(f"--grads {path} holds {kind}: make it by {_HOW}")
            if odd := [name for name, value in one.items() if value.layout != torch.strided or value.is_complex()]:
                raise ConfigurationError(f"--grads {path}: {odd[0]!r} is sparse or complex: save dense real gradients")
            found.append({str(name): value.detach().float() for name, value in one.items() if value.numel()})
    return _checked(found)


def _loaded(path: Path) -> object:
    """Return what torch.save() wrote to a file; ConfigurationError for any other file."""
    reason = "the file is empty"
    try:
        if path.stat().st_size:
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        reason = error.strerror or str(error)
    except Exception:  # of bytes that are no pickle it may be any
        reason = "this is no file of torch.save() with tensors alone, or a damaged one"
    raise ConfigurationError(f"--grads {path}: {reason}. Make it by {_HOW}")


def of_script(script: Path, arguments: Sequence[str], *, steps: int, timeout_s: float) -> tuple[Gradients, float]:
    """Run a script; return the gradients of its last four steps, which stand for workers, and the seconds of a step.

    Raises ConfigurationError if the script ends before, or takes longer.
    """
    if not script.is_file():
        raise ConfigurationError(f"--script {script} does not exist: pass the path of a Python script")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gradients.pt"
        command = [sys.executable, "-P", "-m", "byteps_thc._cli.compare.capture", str(path), str(steps - WORKERS)]
        try:
            run = subprocess.run([*command, str(WORKERS), str(script), *arguments], check=False, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise ConfigurationError(
                f"--script {script} took fewer than {steps} steps in {timeout_s:g} s: fewer --steps or more --timeout-s"
            ) from None
        if not path.exists():
            raise ConfigurationError(
                f"--script {script} ended with exit code {run.returncode} before step {steps} of its optimizer: "
                "read its messages above, or lower --steps"
            )
        times = torch.load(path.with_suffix(".times"), weights_only=True)
        return of_files([path]), statistics.median(times[1:])


def _checked(gradients: Gradients) -> Gradients:
    """Raise InputError unless they are those of two to eight workers, finite and not all zero."""
    if len(gradients) < 2:
        raise InputError(
            f"gradients of {len(gradients)} workers: pass those of two or more, --grads FILE for each or a list of "
            "dicts in one file"
        )
    if len(gradients) > _MOST_WORKERS:
        raise InputError(
            f"gradients of {len(gradients)} workers: at most {_MOST_WORKERS} ranks run on this host. Pass "
            f"{_MOST_WORKERS} of them, and --workers {len(gradients)}"
        )
    first = {name: value.shape for name, value in gradients[0].items()}
    for worker, own in enumerate(gradients):
        if {name: value.shape for name, value in own.items()} != first:
            raise InputError(
                f"worker {worker}'s gradients have other names or shapes than worker 0's: save the same model's"
            )
        if bad := next((name for name, value in own.items() if not value.isfinite().all()), None):
            raise InputError(f"worker {worker}'s gradient {bad!r} has NaN or infinity: save another step")
    if not any(value.any() for own in gradients for value in own.values()):
        raise InputError("all gradients are 0: save them after backward()")
    return gradients


def own_shapes(parameters: int) -> list[tuple[int, ...]]:
    """Weights and biases of linear layers, as many parameters or a few less."""
    width = max(1, min(_WIDTH, math.isqrt(parameters)))
    return [(width, width), (width,)] * max(1, parameters // (width * width + width))


def own_gradients(parameters: int, worker: int) -> list[Tensor]:
    """Backpropagate a worker's rows through a new multilayer perceptron of own_shapes()."""
    torch.manual_seed(0)
    shapes = own_shapes(parameters)
    width = shapes[0][0]
    layers = [nn.Linear(width, width, device="cpu") for _ in shapes[::2]]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
    rows = torch.randn(_ROWS, width, generator=torch.Generator().manual_seed(1 + worker), device="cpu")
    return list(torch.autograd.grad(model(rows).square().mean(), list(model.parameters())))
