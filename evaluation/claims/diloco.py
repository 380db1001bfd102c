"""THC as the outer average of DiLoCo (MuLoCo 2505.23725, SparseLoCo 2508.15706): the price of few bits."""

import statistics
from dataclasses import asdict, dataclass

import numpy as np
from averages.averagers import FP32, Scheme, make
from averages.ranks import RankCodes
from pages.claim import Check, Claim, Plot, Result, Series, Table
from torch import Tensor
from trainings.outer_steps import train
from trainings.replicas import Replicas
from trainings.train import mean_and_spread, spread

WORKERS, INNER, OUTER = 8, 10, 8
SEEDS = (1, 2, 3, 4, 5)
FP32_NAME = "fp32"
SCHEMES: dict[str, Scheme] = {FP32_NAME: FP32} | {f"THC, {bits} + {bits}": RankCodes(bits, bits) for bits in (2, 3, 4)}


@dataclass(frozen=True)
class Run:
    """held_out: losses in nats after each outer step. errors: of each average, squared, by the average's energy.

    bits: of a coordinate and outer step, both ways.
    """

    held_out: list[float]
    errors: list[float]
    bits: float


def run(scheme: Scheme, workers: int, inner: int, outer: int, seed: int) -> Run:
    """All workers in this process."""
    replicas = Replicas.of("GPT", workers, inner * outer, "AdamW", seed)
    tensors = replicas.all[0].training.tensors
    averager, errors = make(scheme, workers, tensors), list[float]()

    def average(gradients: Tensor) -> Tensor:
        found, exact = averager.average(gradients), gradients.mean(dim=0)
        errors.append(float((found - exact).square().sum() / exact.square().sum()))
        return found

    trained = train(replicas, average, inner, outer, losses=True)
    return Run(trained.held_out, errors, 8 * averager.bytes_both_ways / tensors[-1].stop)


Runs = dict[str, list[Run]]


def last(runs: Runs, name: str) -> list[float]:
    """Losses at the end, by seed."""
    return [own.held_out[-1] for own in runs[name]]


def behind(runs: Runs, name: str) -> list[float]:
    """Nats above fp32, by seed: the same model and batches."""
    return [own - exact for own, exact in zip(last(runs, name), last(runs, FP32_NAME), strict=True)]


def error(runs: Runs, name: str) -> float:
    return statistics.mean(statistics.mean(own.errors) for own in runs[name])


def within_spread(runs: Runs, name: str) -> Check:
    """Check the loss against the spread of fp32's own losses over the seeds."""
    exact, own = last(runs, FP32_NAME), last(runs, name)
    met = statistics.mean(own) - statistics.mean(exact) <= spread(exact)
    return Check(
        f"{name}: held-out loss at the end",
        f"not above fp32's by more than its spread over the seeds: {mean_and_spread(exact, 3)}",
        f"{mean_and_spread(own, 3)}; seed by seed {mean_and_spread(behind(runs, name), 3)} above",
        met,
        "" if met else f"its averages have an error of {error(runs, name):.1%}, and ranks keep no residuals",
    )


def table(runs: Runs) -> Table:
    """A line for each scheme."""
    head = ["outer average", "bits both ways", "error of an average", "held-out loss, nats", "above fp32, nats"]
    rows = [
        [
            name,
            f"{own[0].bits:.1f}",
            f"{error(runs, name):.2%}",
            mean_and_spread(last(runs, name), 3),
            mean_and_spread(behind(runs, name), 3),
        ]
        for name, own in runs.items()
    ]
    title = f"{WORKERS} workers, {len(runs[FP32_NAME][0].held_out)} outer steps of {INNER} inner ones"
    return Table(title, [head, *rows])


def plot(runs: Runs) -> Plot:
    """Losses by outer step, above fp32's of the same seed: the losses themselves lie on each other."""
    exact, series = [one.held_out for one in runs[FP32_NAME]], []
    for name, own in runs.items():
        if name == FP32_NAME:
            continue
        above = [np.subtract(one.held_out, losses).tolist() for one, losses in zip(own, exact, strict=True)]
        steps = [list(step) for step in zip(*above, strict=True)]
        x = [float(step) for step in range(1, len(steps) + 1)]
        series.append(Series(name, x, [statistics.mean(y) for y in steps], [spread(y) for y in steps]))
    title = f"DiLoCo, {WORKERS} workers: loss against fp32's, same seeds"
    return Plot("diloco", title, "outer steps", "held-out loss above fp32's [nats]", series)


def measure(quick: bool) -> Result:
    """See the module. Quick: 2 and 4 bits, two seeds, fewer steps."""
    seeds, outer = (SEEDS[:2], 2) if quick else (SEEDS, OUTER)
    schemes = {name: scheme for name, scheme in SCHEMES.items() if not quick or name != "THC, 3 + 3"}
    runs: Runs = {
        name: [run(scheme, WORKERS, INNER, outer, seed) for seed in seeds] for name, scheme in schemes.items()
    }
    checks = [within_spread(runs, name) for name in runs if name != FP32_NAME]
    data = {name: [asdict(one) for one in own] for name, own in runs.items()}
    return Result(checks, [table(runs)], [plot(runs)], data)


CLAIM = Claim(
    name="diloco",
    title="DiLoCo's outer average",
    figure="none (MuLoCo, SparseLoCo)",
    paper="2 bits for outer gradients lose nothing (others' compressors, with error feedback)",
    stand_in=(
        "A GPT of .24 million parameters that reads Python's library, with 8 workers of 10 AdamW steps and 8 outer "
        "steps, stands in for models of hundreds of millions of parameters, 30 to 500 inner steps and billions of "
        "tokens. One process simulates the workers. With two real ranks and ThcReducer a test gets the same losses."
    ),
    minutes=8,
    measure=measure,
)
