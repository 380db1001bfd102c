"""Two models on real data that every installation has, trained by n workers in one process.

The demo's GPT reads the source of Python's standard library. A CNN with batch norms tells characters apart: printable
ASCII in the text faces that matplotlib brings (DejaVu, STIX, Computer Modern), in several sizes, moved, and with noise.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn
from torch.nn import functional

from thc_lab.demo.data import BatchSampler, load_corpus
from thc_lab.demo.model import Gpt, GptShape, loss_of

CHARACTERS = [chr(code) for code in range(33, 127)]
PIXELS = 32
FACES = ("DejaVuSans*", "DejaVuSerif*", "STIXGeneral*", "cmr10*", "cmss10*", "cmtt10*")
WARM_UP_STEPS = 20
FINAL_LEARNING_RATE_FRACTION = 0.05
MAX_GRADIENT_NORM = 1.0

Batch = tuple[Tensor, Tensor]


@dataclass
class Training:
    """A model, the batches of its n workers, and its optimizer."""

    model: nn.Module
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]
    batches: list[Iterator[Batch]]
    optimizer: torch.optim.Optimizer
    steps: int

    def __post_init__(self) -> None:
        # Parameters in the order of their gradients, as in DDP's buckets.
        self.parameters = list(self.model.parameters())[::-1]
        ends = list(itertools.accumulate((parameter.numel() for parameter in self.parameters), initial=0))
        self.tensors = [slice(start, stop) for start, stop in itertools.pairwise(ends)]
        self._peak = self.optimizer.param_groups[0]["lr"]
        self.taken = 0

    def gradients(self) -> Tensor:
        """float32[workers, coordinates]: every worker's gradient of its next batch."""
        return torch.stack([self._gradient(batches) for batches in self.batches])

    def _gradient(self, batches: Iterator[Batch]) -> Tensor:
        inputs, targets = next(batches)
        loss = self.loss(self.model, inputs, targets)
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss, self.parameters)])

    def update(self, average: Tensor) -> None:
        """One step of the optimizer: warm-up, then a cosine; gradients are clipped, as in the demo."""
        self.taken += 1
        cosine = 0.5 * (1 + math.cos(math.pi * self.taken / self.steps))
        factor = FINAL_LEARNING_RATE_FRACTION + (1 - FINAL_LEARNING_RATE_FRACTION) * cosine
        self.optimizer.param_groups[0]["lr"] = self._peak * factor * min(1.0, self.taken / WARM_UP_STEPS)
        for parameter, span in zip(self.parameters, self.tensors, strict=True):
            parameter.grad = average[span].view_as(parameter).clone()
        nn.utils.clip_grad_norm_(self.parameters, MAX_GRADIENT_NORM)
        self.optimizer.step()


def gpt(workers: int, steps: int, *, large: bool = False, seed: int = 1) -> Training:
    """The demo's GPT (1 M parameters) and its settings; large: 11 M parameters."""
    torch.manual_seed(seed)
    shape = GptShape(layers=6, heads=6, width=384, context=128) if large else GptShape(4, 4, 144, 64)
    model = Gpt(shape)
    tokens = load_corpus().training
    samplers = [
        BatchSampler(tokens, batch_size=8, context=shape.context, seed=seed, worker=worker) for worker in range(workers)
    ]
    rate = 1e-3 if large else 5e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    return Training(model, loss_of, [iter(sampler.next_batch, None) for sampler in samplers], optimizer, steps)


def cnn(workers: int, steps: int, *, large: bool = False, seed: int = 1) -> Training:
    """A residual CNN (0.7 M parameters; large: 11 M, ResNet-18) on images of characters, SGD with momentum."""
    torch.manual_seed(seed)
    model = _residual_network((64, 128, 256, 512) if large else (32, 64, 128), len(CHARACTERS))
    images, labels = character_images()
    batches = [_image_batches(images, labels, 32, seed * 1_000_003 + worker) for worker in range(workers)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    return Training(model, _classification_loss, batches, optimizer, steps)


def _classification_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(model(inputs), targets)


class _Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        convolution = partial(nn.Conv2d, kernel_size=3, padding=1, bias=False)
        self.path = nn.Sequential(
            convolution(inputs, outputs, stride=stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            convolution(outputs, outputs),
            nn.BatchNorm2d(outputs),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.path(x) + self.shortcut(x))


def _residual_network(widths: tuple[int, ...], classes: int) -> nn.Module:
    """Two residual blocks per width, the first of each but one with stride 2."""
    first = widths[0]
    layers: list[nn.Module] = [
        nn.Conv2d(1, first, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(first),
        nn.ReLU(),
    ]
    for before, width in itertools.pairwise((first, *widths)):
        layers += [_Residual(before, width, 1 if width == first else 2), _Residual(width, width, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


def _image_batches(images: Tensor, labels: Tensor, size: int, seed: int) -> Iterator[Batch]:
    """Images drawn at random, moved by up to 4 pixels (all of a batch alike), with noise; the same again for a seed."""
    random = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(len(images), (size,), generator=random)
        down, right = torch.randint(-4, 5, (2,), generator=random).tolist()
        noise = torch.randn((size, 1, PIXELS, PIXELS), generator=random)
        moved = images[chosen].roll((down, right), dims=(2, 3))
        yield moved + 0.2 * noise, labels[chosen]


def character_images() -> Batch:
    """float32[images, 1, 32, 32] with mean 0 and variance 1, and int64[images]: the characters."""
    folder = Path(matplotlib.get_data_path()) / "fonts/ttf"
    paths = sorted({path for pattern in FACES for path in folder.glob(f"{pattern}.ttf")})
    images = [
        _draw(character, ImageFont.truetype(str(path), size))
        for path in paths
        for size in (18, 22, 26)
        for character in CHARACTERS
    ]
    stacked = torch.from_numpy(np.stack(images)).float()[:, None]
    labels = torch.arange(len(CHARACTERS)).repeat(len(images) // len(CHARACTERS))
    return (stacked - stacked.mean()) / stacked.std(), labels


def _draw(character: str, font: ImageFont.FreeTypeFont) -> np.ndarray:
    image = Image.new("L", (PIXELS, PIXELS))
    ImageDraw.Draw(image).text((PIXELS / 2, PIXELS / 2), character, fill=255, font=font, anchor="mm")
    return np.asarray(image)
