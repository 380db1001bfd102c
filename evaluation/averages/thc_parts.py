"""THC with one part removed or added, and the error of such an average."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from baselines.dense import DenseConfig
from torch import Tensor
from trainings.train import MODELS, Average, train

from averages import as_printed, averaging
from averages.alternatives import gradients
from averages.as_printed import AsPrinted
from averages.averagers import make
from averages.averaging import Scheme
from averages.ranks import RankCodes
from byteps_thc import ServerCodes
from byteps_thc._scheme.adding.tables import LookupTable

WORKERS = 4
#: Small enough to clamp nothing: 4.9 times the norm.
NO_CLAMP_P = 2.0**-20
PAPER: dict[str, Any] = {"p": 1 / 32, "rounding": "independent"}
Training = tuple[str, str]
LOGNORMAL = "lognormal, cosine .1"
#: Steps on exact averages before the GPT's gradients are taken.
GPT_STEPS = 20


@dataclass(frozen=True)
class Case:
    """how: a ServerCodes (through a server) and RankCodes (among ranks) run on the package's kernels, a Scheme in the
    study's THC, AsPrinted as Algorithm 1.

    removal: of one part of THC, all others stay.
    """

    name: str
    how: ServerCodes | RankCodes | DenseConfig | Scheme | AsPrinted
    removal: bool = False

    @property
    def implementation(self) -> str:
        by_type = {ServerCodes: "package", RankCodes: "package", Scheme: "study", AsPrinted: "Algorithm 1"}
        return by_type.get(type(self.how), "fp32")

    @property
    def table(self) -> LookupTable:
        """The table of the package's schemes, through a server."""
        assert isinstance(self.how, ServerCodes)
        return self.how.resolve(WORKERS).table

    def bits(self, up: int) -> str:
        """Bits of a coordinate: codes up, and down sums, which have the 8 bits of a server that only adds."""
        if isinstance(self.how, DenseConfig):
            return "32 + 32"
        return f"{up} + {self.how.down_bits if isinstance(self.how, RankCodes) else 8}"


def parts(bits: int) -> list[Case]:
    """THC with codes of so many bits, and each of its parts taken away or added alone."""
    thc = ServerCodes(bits=bits)
    return [
        Case("THC", thc),
        Case("no rotation", in_study(thc, rotation=False), removal=True),
        Case("no clamp", ServerCodes(bits=bits, p=NO_CLAMP_P), removal=True),
        Case("no rotation, no clamp", in_study(thc, rotation=False, clamp=False)),
        Case("independent rounding", ServerCodes(bits=bits, rounding="independent"), removal=True),
        Case("uniform table", ServerCodes.uniform(bits), removal=True),
        Case("blocks of 256", ServerCodes(bits=bits, rotation_block=256), removal=True),
        Case("blocks of 65536", ServerCodes(bits=bits, rotation_block=1 << 16)),
        Case("with feedback", ServerCodes(bits=bits, error_feedback=True)),
        Case("with ranks that decode", RankCodes(bits, bits)),
    ]


def same_in_study(bits: int) -> Case:
    """THC, as the cases without rotation run it."""
    return Case("THC", in_study(ServerCodes(bits=bits)))


def of_figure_14(bits: int) -> list[Case]:
    """Return the cases of the paper's Figure 14, and Algorithm 1 as printed."""
    uniform, forgets = (ServerCodes.uniform(bits, error_feedback=feedback, **PAPER) for feedback in (True, False))
    return [
        Case("THC, paper", ServerCodes(bits=bits, granularity=30, error_feedback=True, **PAPER)),
        Case("Uniform THC", uniform),
        Case("Uniform THC, no feedback", forgets),
        Case("Uniform THC, no rotation", in_study(uniform, rotation=False)),
        Case("Uniform THC, neither", in_study(forgets, rotation=False)),
        Case("Algorithm 1 as printed", AsPrinted(bits)),
    ]


def in_study(config: ServerCodes, *, rotation: bool = True, clamp: bool = True) -> Scheme:
    """Return the scheme of a server's workers, with parts that the package cannot switch off."""
    feedback = config.error_feedback
    return Scheme(
        config.resolve(WORKERS).table,
        config.rotation_block,
        config.rounding,
        feedback,
        rotation=rotation,
        clamp=clamp,
        unbiased=clamp and not feedback,
    )


def average_of(case: Case, tensors: Sequence[slice], seed: int) -> Average:
    """Return an average that keeps residuals from step to step."""
    if isinstance(case.how, ServerCodes):
        return make(case.how.model_copy(update={"seed": seed}), WORKERS, tensors).average
    if isinstance(case.how, RankCodes):
        return make(replace(case.how, seed=seed), WORKERS, tensors).average
    if isinstance(case.how, DenseConfig):
        return make(case.how, WORKERS, tensors).average
    if isinstance(case.how, Scheme):
        return averaging.Averager(case.how, tensors[-1].stop, seed=seed).average
    return as_printed.Averager(case.how, seed=seed).average


def lognormal(repetitions: int) -> list[Tensor]:
    """float32[workers, coordinates] each."""
    return [
        torch.from_numpy(gradients(LOGNORMAL, WORKERS, np.random.default_rng(i))).float() for i in range(repetitions)
    ]


def of_gpt(repetitions: int) -> list[Tensor]:
    """Gradients of consecutive steps of the small GPT."""
    training = MODELS["GPT"](WORKERS, 100, "AdamW", 0).training
    found: list[Tensor] = []
    for step in range(GPT_STEPS + repetitions):
        own = training.gradients()
        training.update(own.mean(dim=0))
        found += [own] if step >= GPT_STEPS else []
    return found


def nmse(case: Case, of: Sequence[Tensor], *, draws: int = 1) -> float:
    """Squared error of the average over the average's energy, of a first step; mean of the gradients.

    draws: of random numbers for each gradient.
    """
    errors = []
    for i, own in enumerate(of):
        exact = own.mean(dim=0)
        for draw in range(draws):
            average = average_of(case, [slice(0, own.shape[1])], i + len(of) * draw)(own)
            errors.append(float((average - exact).square().sum() / exact.square().sum()))
    return float(np.mean(errors))


@dataclass(frozen=True)
class Effort:
    """Effort of a measurement. trainings: by bits of a code."""

    trainings: dict[int, Sequence[Training]]
    seeds: Sequence[int]
    steps: dict[str, int]
    repetitions: int


@dataclass
class Measured:
    """Results of one case. nmse: of lognormal gradients and a GPT's. Others by training and seed."""

    case: Case
    nmse: list[float]
    held_out: dict[Training, list[float]] = field(default_factory=dict)
    trained: dict[Training, list[float]] = field(default_factory=dict)
    accuracy: dict[Training, list[float]] = field(default_factory=dict)

    def run(self, which: Training, effort: Effort) -> None:
        """Train once for each seed, which chooses parameters, batches and rounding."""
        name, optimizer = which
        for results in (self.held_out, self.trained, self.accuracy):
            results[which] = []
        for seed in effort.seeds:
            small = MODELS[name](WORKERS, effort.steps[name], optimizer, seed)
            assert small.accuracies is not None
            average = average_of(self.case, small.training.tensors, seed)
            self.held_out[which].append(round(train(small, average).last, 5))
            self.trained[which].append(round(small.losses()[0], 5))
            self.accuracy[which].append(round(small.accuracies()[1], 3))

    def as_data(self) -> dict[str, Any]:
        """Held-out losses by training and seed; other figures as means."""
        held_out = {" ".join(which): losses for which, losses in self.held_out.items()}
        trained = {" ".join(which): round(statistics.mean(losses), 5) for which, losses in self.trained.items()}
        accuracy = {" ".join(which): round(statistics.mean(values), 3) for which, values in self.accuracy.items()}
        found = {"case": self.case.name, "nmse": [float(f"{error:.5g}") for error in self.nmse]}
        return found | {"held_out": held_out, "trained": trained, "accuracy": accuracy}


def differences(own: dict[Training, list[float]], base: dict[Training, list[float]]) -> list[float]:
    """Seed by seed, means of all trainings."""
    rows = [[a - b for a, b in zip(own[which], base[which], strict=True)] for which in own]
    return [statistics.mean(seeds) for seeds in zip(*rows, strict=True)]
