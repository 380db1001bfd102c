"""A user's gradients, out of a training script that runs for some steps, and gradients made here."""

import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from byteps_thc._base.errors import ConfigurationError, InputError
from byteps_thc._cli.compare import WORKERS

#: One for each worker: the same names and shapes.
Gradients = list[dict[str, Tensor]]
#: Width of layers of own_gradients(), and rows of a worker.
_WIDTH, _ROWS = 1024, 16


def of_script(script: Path, arguments: Sequence[str], steps: int) -> tuple[Gradients, float]:
    """Run a script; return the gradients of its last four steps, which stand for workers, and the seconds of a step.

    Raises ConfigurationError if the script ends before, InputError for gradients that say nothing.
    """
    if not script.is_file():
        raise ConfigurationError(f"--script {script} does not exist: pass the path of a Python script")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gradients.pt"
        command = [sys.executable, "-P", "-m", "byteps_thc._cli.compare.capture", str(path), str(steps - WORKERS)]
        run = subprocess.run([*command, str(WORKERS), str(script), *arguments], check=False)
        if not path.exists():
            raise ConfigurationError(
                f"--script {script} ended with exit code {run.returncode} before step {steps} of its optimizer: "
                "read its messages above, or lower --steps"
            )
        times = torch.load(path.with_suffix(".times"), weights_only=True)
        return _checked(torch.load(path, weights_only=True)), statistics.median(times[1:])


def _checked(gradients: Gradients) -> Gradients:
    """Raise InputError unless they are finite and not all zero."""
    for own in gradients:
        if bad := next((name for name, value in own.items() if not value.isfinite().all()), None):
            raise InputError(f"the gradient of {bad} has NaN or infinity: end with other steps by --steps")
    if not any(value.any() for own in gradients for value in own.values()):
        raise InputError("all gradients of the script are 0: call its optimizer's step() after backward()")
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
