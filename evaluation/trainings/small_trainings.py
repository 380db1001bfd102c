"""Small trainings with a held-out loss: a perceptron and a CNN that read digits, and a small GPT of the demo's kind.

Digits are drawn in those faces of models.py that have digits; every third image is held out. The GPT learns the code of
Python's standard library. Fine-tuning continues with the library's prose about the language (pydoc_data); every tenth
topic is held out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional

from thc_lab.demo.data import ALPHABET, UNKNOWN, BatchSampler, Corpus, load_corpus
from thc_lab.demo.data import HELD_OUT_STRIDE as TOPIC_STRIDE
from thc_lab.demo.model import Gpt, GptShape, loss_of, window_losses
from trainings import models
from trainings.models import CHARACTERS, PIXELS, Batch, Training, character_images

OPTIMIZERS = ("SGD", "AdamW")
NOISE = 0.7
HELD_OUT_STRIDE = 3
GPT_SHAPE = GptShape(layers=2, heads=4, width=96, context=64)
#: Training windows in a loss of the GPT; its loss on held-out text covers all windows.
GPT_WINDOWS = 96
#: Held-out windows in a loss of the large GPT.
LARGE_GPT_WINDOWS = 512
#: Steps of the GPT before fine-tuning, with exact averages.
PRETRAINING_STEPS = 200
LEARNING_RATE, FINE_TUNING_RATE, LARGE_GPT_RATE = 5e-3, 1e-3, 1e-3


@dataclass(frozen=True)
class SmallTraining:
    """A training, and its losses on training data and on held-out data.

    accuracies: of a classifier, likewise, in per cent; None: it is none.
    """

    training: Training
    losses: Callable[[], tuple[float, float]]
    accuracies: Callable[[], tuple[float, float]] | None = None


def mlp(workers: int, steps: int, optimizer: str, seed: int) -> SmallTraining:
    """A perceptron of 42 thousand parameters."""
    widths = (PIXELS**2 // 4, 128, 64, 10)

    def make() -> nn.Module:
        layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
        return nn.Sequential(nn.Flatten(), *layers[:-1])

    return _digits(make, workers, steps, optimizer, seed)


def cnn(workers: int, steps: int, optimizer: str, seed: int) -> SmallTraining:
    """Two convolutions with batch norms and a linear layer, 15 thousand parameters."""

    def make() -> nn.Module:
        layers: list[nn.Module] = []
        for inputs, outputs in ((1, 16), (16, 32)):
            convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1)
            layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * (PIXELS // 8) ** 2, 10))

    return _digits(make, workers, steps, optimizer, seed)


def gpt(workers: int, steps: int, optimizer: str, seed: int) -> SmallTraining:
    """The demo's GPT, half as deep and two thirds as wide (0.24 M parameters), and its text."""
    torch.manual_seed(seed)
    return _reading(_code(), Gpt(GPT_SHAPE), workers, steps, optimizer, seed, LEARNING_RATE)


def fine_tuned_gpt(workers: int, steps: int, optimizer: str, seed: int) -> SmallTraining:
    """The same GPT after PRETRAINING_STEPS, trained on with other text and a fifth of the learning rate."""
    model = Gpt(GPT_SHAPE)
    model.load_state_dict(_pretrained(workers, optimizer, seed))
    return _reading(_prose(), model, workers, steps, optimizer, seed, FINE_TUNING_RATE)


def large_gpt(workers: int, steps: int, optimizer: str, seed: int) -> SmallTraining:
    """The GPT whose steps are timed (10.7 M parameters)."""
    model = models.gpt(1, 1, large=True, seed=seed).model
    return _reading(_code(), model, workers, steps, optimizer, seed, LARGE_GPT_RATE, LARGE_GPT_WINDOWS)


@cache
def _pretrained(workers: int, optimizer: str, seed: int) -> dict[str, Tensor]:
    training = gpt(workers, PRETRAINING_STEPS, optimizer, seed).training
    for _ in range(training.steps):
        training.update(training.gradients().mean(dim=0))
    return training.model.state_dict()


def _reading(
    corpus: Corpus,
    model: Gpt,
    workers: int,
    steps: int,
    optimizer: str,
    seed: int,
    adamw: float,
    held_out_windows: int | None = None,
) -> SmallTraining:
    """A training of a GPT on a text.

    adamw: the learning rate of that optimizer. held_out_windows: about so many are in a held-out loss; None: all.
    """
    context = model.positions.num_embeddings
    samplers = [
        BatchSampler(corpus.training, batch_size=8, context=context, seed=seed, worker=worker)
        for worker in range(workers)
    ]
    batches = [iter(sampler.next_batch, None) for sampler in samplers]
    made = _optimizer(optimizer, model, sgd=0.1, adamw=adamw)

    def loss_on(tokens: Tensor, windows: int | None) -> float:
        stride = 1 if windows is None else max(1, (len(tokens) - 1) // context // windows)
        total, count = window_losses(model, tokens, context, None, 0, stride)
        return total / count

    def losses() -> tuple[float, float]:
        return loss_on(corpus.training, GPT_WINDOWS), loss_on(corpus.held_out, held_out_windows)

    training = Training(model, lambda _, inputs, targets: loss_of(model, inputs, targets), batches, made, steps)
    return SmallTraining(training, losses)


def _digits(make: Callable[[], nn.Module], workers: int, steps: int, optimizer: str, seed: int) -> SmallTraining:
    torch.manual_seed(seed)
    model = make()
    images, held_out = _digit_images()
    batches = [_batches(images, 16, seed * 1_000_003 + worker) for worker in range(workers)]
    evaluated = [next(_batches(part, 2000, 1)) for part in (images, held_out)]

    @torch.no_grad()
    def on_both(figure: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> tuple[float, float]:
        model.eval()
        trained, held = (float(figure(model, *batch)) for batch in evaluated)
        model.train()
        return trained, held

    training = Training(model, _classification_loss, batches, _optimizer(optimizer, model, sgd=0.05, adamw=3e-3), steps)
    return SmallTraining(training, lambda: on_both(_classification_loss), lambda: on_both(_accuracy))


def _optimizer(name: str, model: nn.Module, *, sgd: float, adamw: float) -> torch.optim.Optimizer:
    if name == "SGD":
        return torch.optim.SGD(model.parameters(), lr=sgd, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=adamw, betas=(0.9, 0.95), weight_decay=0.1)


def _classification_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(model(inputs), targets)


def _accuracy(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Per cent."""
    return 100 * (model(inputs).argmax(dim=1) == targets).float().mean()


@cache
def _code() -> Corpus:
    return load_corpus()


@cache
def _prose() -> Corpus:
    tokens = {character: token for token, character in enumerate(ALPHABET)}
    texts = [torch.tensor([tokens.get(letter, UNKNOWN) for letter in topics[name]]) for name in sorted(topics)]
    held_out = texts[::TOPIC_STRIDE]
    training = [text for number, text in enumerate(texts) if number % TOPIC_STRIDE]
    return Corpus(torch.cat(training), torch.cat(held_out), len(texts))


@cache
def _digit_images() -> tuple[Batch, Batch]:
    """Training and held-out images, of half the pixels each way, mean 0 and variance 1, and their labels."""
    images, _ = character_images()
    zero = CHARACTERS.index("0")
    digits = images.view(-1, 3, len(CHARACTERS), 1, PIXELS, PIXELS)[:, :, zero : zero + 10]
    # A face without digits draws the same box for all.
    digits = digits[(digits[:, 0, 0] != digits[:, 0, 1]).flatten(1).any(dim=1)]
    smaller = functional.avg_pool2d(digits.flatten(0, 2), 2)
    faces = ((smaller - smaller.mean()) / smaller.std()).view(len(digits), 30, 1, PIXELS // 2, PIXELS // 2)
    held_out = torch.arange(len(faces)) % HELD_OUT_STRIDE == 0

    def labelled(part: Tensor) -> Batch:
        return part.flatten(0, 1), torch.arange(10).repeat(3 * len(part))

    return labelled(faces[~held_out]), labelled(faces[held_out])


def _batches(of: Batch, size: int, seed: int) -> Iterator[Batch]:
    """Images drawn at random, with noise; the same again for a seed."""
    images, labels = of
    random = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(len(images), (size,), generator=random)
        noise = torch.randn((size, *images.shape[1:]), generator=random)
        yield images[chosen] + NOISE * noise, labels[chosen]
