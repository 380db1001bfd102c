"""Time to a loss and throughput of schemes by bandwidth: steps to the loss times the time of a step.

Losses by step are of small models, n workers in one process (averages/loss_curves.py); times of a step are of larger
ones of their kinds, real ranks on shaped links (evaluation/step_times).
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from averages.loss_curves import Curve, mean_steps, train_all
from pages.claim import Check, Claim, Drawn, Plot, Result, Series, Table
from pages.page import README_TABLE
from step_times import measure as step_times
from step_times.measure import COLOCATED, DEFAULT, ONE_SERVER, PLACEMENTS, RANKS, SCHEMES, StepTimes
from trainings.train import mean_and_spread, spread

from byteps_thc import ServerCodes
from byteps_thc._engine.policy import CompressionPolicy

#: Titles of the models.
TIMED = {
    "GPT": "GPT of 10.7 M parameters",
    "CNN": "CNN of VGG's kind, 11.0 M parameters",
    "ResNet": "ResNet-18 of 11.2 M parameters",
}
IN_README = ("fp32", "bf16", "PowerSGD, rank 4", DEFAULT, ONE_SERVER, COLOCATED)
OURS = "THC (default)"
TOLERANCE = 0.003
#: Times fp32's last loss: the goal of a training.
TARGET = 1.01
FP32_FACTOR, BF16_FACTOR, PAPER_FACTOR = 2.5, 1.3, 1.28
GBIT_CHECKED, GBIT_LOST = 1.0, 10.0
Curves = dict[str, Curve]


@dataclass(frozen=True)
class Budget:
    """timed: model -> Gb/s -> repetitions. trained: model -> (steps, steps between its losses)."""

    timed: dict[str, dict[float, int]]
    trained: dict[str, tuple[int, int]]
    seeds: int


_REPEATS = {0.1: 5, GBIT_CHECKED: 11, GBIT_LOST: 11}
FULL = Budget(
    {"GPT": _REPEATS, "CNN": _REPEATS, "ResNet": {GBIT_CHECKED: 7}}, {"GPT": (120, 10), "CNN": (200, 20)}, seeds=5
)
#: One seed and 15 steps say nothing of losses: rates alone are checked.
QUICK = Budget({"GPT": {GBIT_CHECKED: 2}}, {"GPT": (15, 5)}, seeds=1)


def measure(quick: bool) -> Result:
    budget = QUICK if quick else FULL
    times = {model: step_times.measure(model, repeats) for model, repeats in budget.timed.items()}
    curves = {model: train(model, budget) for model in budget.trained}
    checks, tables = [], [readme_table(times["GPT"])]
    for model in budget.trained:
        if not quick:
            checks += [loss_check(model, curves[model]), time_check(model, curves[model], times[model])]
        checks += [check for at in times[model] for check in rate_checks(model, at)]
        tables += [step_table(model, times[model]), loss_table(model, curves[model], times[model])]
    plots = [loss_plot(curves["GPT"], budget.seeds)]
    if not quick:
        checks.append(computing_check(*(at_checked(times[model]) for model in ("CNN", "ResNet"))))
        tables.append(step_table("ResNet", times["ResNet"]))
        plots.append(rate_plot(times["GPT"]))
    return Result(checks, tables, plots, data_of(times, curves))


def train(model: str, budget: Budget) -> Curves:
    """Losses of all schemes; small tensors travel exactly. Servers' hosts make no difference to sums."""
    steps, every = budget.trained[model]
    schemes = {**SCHEMES, ONE_SERVER: ServerCodes()}
    bypass = CompressionPolicy().bypass_elements
    curves = train_all(
        model, schemes, workers=RANKS, steps=steps, every=every, seeds=budget.seeds, bypass_elements=bypass
    )
    return curves | {COLOCATED: curves[ONE_SERVER]}


def at_checked(times: Sequence[StepTimes]) -> StepTimes:
    return next(at for at in times if at.gbit == GBIT_CHECKED)


def loss_check(model: str, curves: Curves) -> Check:
    """THC costs no loss."""
    excess, finer = (curves[scheme].excess(curves["fp32"]) for scheme in (DEFAULT, "bf16"))
    mean, half = statistics.mean(excess), spread(excess)
    what = f"{model}: held-out loss after the last step, {OURS} against fp32, same seeds"
    told = "are consistent with no difference" if abs(mean) <= half else "agree on the direction"
    why = (
        f"the {len(excess)} seeds {told}. bf16, with much finer rounding, ends {statistics.mean(finer):+.2%} ± "
        f"{spread(finer):.2%} from fp32"
    )
    met = abs(mean) <= TOLERANCE
    return Check(what, f"within {TOLERANCE:.1%}", f"{mean:+.2%} ± {half:.2%}", met, "" if met else why)


def rate_checks(model: str, at: StepTimes) -> list[Check]:
    """Expected steps a second at this bandwidth."""

    def check(other: str, expected: str, met: bool) -> Check:
        what = f"{model}: steps a second at {at.gbit:g} Gb/s, {OURS} against {other}"
        why = (
            f"a step takes {at.step_ms[DEFAULT]:.0f} ms, with {other} {at.step_ms[other]:.0f} ms. Both include "
            f"the {at.alone_ms:.0f} ms of a step without averaging"
        )
        return Check(what, expected, f"{at.ratio(DEFAULT, other):.2f}x", met, "" if met else why)

    if at.gbit == GBIT_CHECKED:
        factors = (("fp32", FP32_FACTOR), ("bf16", BF16_FACTOR))
        return [check(name, f">= {least:g}x", at.ratio(DEFAULT, name) >= least) for name, least in factors]
    if at.gbit == GBIT_LOST:
        return [check("bf16", "<= 1x: two cores encode and decode for all four ranks", at.ratio(DEFAULT, "bf16") <= 1)]
    return []


def time_check(model: str, curves: Curves, times: Sequence[StepTimes]) -> Check:
    """The paper's headline."""
    factors = {at.gbit: speedup(curves, at) for at in times}
    got = ", ".join(f"{as_factor(factor)} at {gbit:g}" for gbit, factor in factors.items())
    factor = factors[GBIT_CHECKED]
    own, fp32 = (mean_steps(curves[scheme].steps_to(TARGET, curves["fp32"])) for scheme in (DEFAULT, "fp32"))
    return Check(
        f"{model}: time to fp32's last loss + 1 %, fp32 over {OURS}",
        f">= {PAPER_FACTOR:g}x at {GBIT_CHECKED:g} Gb/s (paper: 1.28x to 1.47x at 100)",
        f"{got} Gb/s",
        met := factor is not None and factor >= PAPER_FACTOR,
        "" if met else f"steps to that loss: {as_steps(own)}, fp32 {as_steps(fp32)}",
    )


def computing_check(cnn: StepTimes, resnet: StepTimes) -> Check:
    """Models with much computation for their parameters gain little (the paper's appendix)."""
    own, other = resnet.ratio(DEFAULT, "fp32"), cnn.ratio(DEFAULT, "fp32")
    what = f"ResNet-18, with more computation: steps a second at {GBIT_CHECKED:g} Gb/s, {OURS} against fp32"
    why = f"a step without averaging takes {resnet.alone_ms:.0f} ms, the CNN's {cnn.alone_ms:.0f} ms"
    met = own < other
    expected = f"below the {other:.2f}x of the CNN (paper: ResNets gain 4.5 % at most)"
    return Check(what, expected, f"{own:.2f}x", met, "" if met else why)


def speedup(curves: Curves, at: StepTimes) -> float | None:
    """fp32's time to the loss over THC's; None where a seed does not reach it."""
    own, fp32 = (mean_steps(curves[scheme].steps_to(TARGET, curves["fp32"])) for scheme in (DEFAULT, "fp32"))
    return None if own is None or fp32 is None else fp32 / own * at.ratio(DEFAULT, "fp32")


def as_factor(factor: float | None) -> str:
    return "not reached" if factor is None else f"{factor:.2f}x"


def as_steps(steps: float | None) -> str:
    return "not reached" if steps is None else f"{steps:.0f}"


def readme_table(times: Sequence[StepTimes]) -> Table:
    """Time of a step by bandwidth, for the schemes that people have at hand."""
    cells = [["each worker's link", *(f"{scheme} [ms]" for scheme in IN_README), "fp32 / THC", "bf16 / THC"]]
    for at in times:
        ratios = [f"{at.ratio(DEFAULT, other):.2f}x" for other in ("fp32", "bf16")]
        cells.append([f"{at.gbit:g} Gb/s", *(f"{at.step_ms[scheme]:.0f}" for scheme in IN_README), *ratios])
    return Table(f"{README_TABLE}, {TIMED['GPT']}, four workers on two cores", cells)


def step_table(model: str, times: Sequence[StepTimes]) -> Table:
    """All schemes."""
    cells = [["scheme", *(f"{at.gbit:g} Gb/s [ms]" for at in times), "sent by a worker in a step [MB]"]]
    for scheme in (*SCHEMES, *PLACEMENTS):
        sent = max(at.sent_mb[scheme] for at in times)
        cells.append([scheme, *(f"{at.step_ms[scheme]:.0f}" for at in times), f"{sent:.1f}"])
    cells.append(["no averaging", *(f"{at.alone_ms:.0f}" for at in times), ""])
    return Table(f"Steps of a {TIMED[model]} by bandwidth. Sent are frames, with headers and TCP's answers", cells)


def loss_table(model: str, curves: Curves, times: Sequence[StepTimes]) -> Table:
    """Losses, steps to the target, and the time these take."""
    seconds = [f"time, {at.gbit:g} Gb/s [s]" for at in times]
    cells = [
        ["scheme", "both ways [KB a step]", "last held-out loss", "against fp32", "steps to fp32's + 1 %", *seconds]
    ]
    for scheme, curve in curves.items():
        excess, steps = curve.excess(curves["fp32"]), curve.steps_to(TARGET, curves["fp32"])
        mean = mean_steps(steps)
        missed = f"{steps.count(None)} of {len(steps)} seeds never"
        last = mean_and_spread([seed.last for seed in curve.seeds])
        against = f"{statistics.mean(excess):+.2%} ± {spread(excess):.2%}"
        cells.append([scheme, f"{curve.bytes_both_ways / 1e3:.1f}", last, against])
        cells[-1] += [missed if mean is None else f"{mean:.0f}"]
        cells[-1] += ["" if mean is None else f"{mean * at.step_ms[scheme] / 1e3:.1f}" for at in times]
    parameters = curves["fp32"].bytes_both_ways / 8e3
    of = f"Losses of a {model} of {parameters:.0f} k parameters, {curve.steps[-1]} steps, {len(curve.seeds)} seeds"
    return Table(f"{of}. A time is the steps to the loss times the step time of the {TIMED[model]}", cells)


def loss_plot(curves: Curves, seeds: int) -> Plot:
    """The plot of docs/results.md."""
    series = [
        Series(scheme, [curve.bytes_both_ways * step / 1e6 for step in curve.steps], curve.means(), curve.spreads())
        for scheme, curve in curves.items()
        if scheme != COLOCATED  # the same as with one server
    ]
    title = f"Held-out loss of a small GPT, 4 workers, by bytes ({seeds} seeds)"
    return Plot("loss_by_bytes", title, "sent and received by a worker [MB]", "nats a character", series, x_axis="log")


def rate_plot(times: Sequence[StepTimes]) -> Plot:
    """Throughput by bandwidth (the paper's figure 7)."""
    gbits = [at.gbit for at in times]
    schemes = (*SCHEMES, *PLACEMENTS)
    series = [Series(scheme, gbits, [1e3 / at.step_ms[scheme] for at in times]) for scheme in schemes]
    title = "Steps a second of a GPT of 10.7 M parameters, 4 workers on 2 cores"
    return Plot("steps_by_bandwidth", title, "link of a worker [Gb/s]", "steps a second", series, "log", "log")


def data_of(times: dict[str, list[StepTimes]], curves: dict[str, Curves]) -> dict[str, Any]:
    """Data beyond plots and tables: the time of a step alone, and the last loss of each seed."""
    return {
        "without averaging [ms]": {
            model: {f"{at.gbit:g}": round(at.alone_ms, 1) for at in each} for model, each in times.items()
        },
        "last held-out loss by seed": {
            model: {scheme: [round(seed.last, 5) for seed in curve.seeds] for scheme, curve in each.items()}
            for model, each in curves.items()
        },
    }


CLAIM = Claim(
    name="time_to_loss",
    title="Time to loss and throughput",
    figure="5, 6, 7",
    paper="at 100 Gb/s THC reaches its accuracy 1.40x to 1.47x faster than Horovod over RDMA with a switch, and 1.28x "
    "to 1.33x faster with a software server. Throughput is 1.43x at 100 Gb/s and 1.85x at 25 Gb/s. TernGrad has a "
    "higher throughput, and stalls",
    stand_in="Four gloo ranks on two cores, each behind a link shaped to 0.1, 1 and 10 Gb/s, stand in for four "
    "workers with GPUs on 100 Gb/s. Ranks that average for each other stand in for a switch, DDP's fp32 and torch's "
    "bf16 hook over TCP for Horovod over RDMA, and thc-ps on a fifth host or on each rank's host for the software "
    "server. Timed models are a GPT, a CNN of VGG's kind and a ResNet-18, 11 M parameters each. Their batches have 64 "
    "characters or 4 images, because two cores compute for all ranks and large batches would hide every link. Trained "
    "models are a small GPT and a small CNN instead of GPT-2, RoBERTa and VGG16, with all workers in one process on "
    "the package's kernels. All schemes send parameters with fewer than 1024 elements exactly. In trainings TopK and "
    "TernGrad pass a server that compresses the average again, while timed ranks exchange their whole payload. torch's "
    "PowerSGD is timed bucket by bucket, because its sums would get mixed up on gloo. Its trainings use torch's "
    "functions on the whole gradient at once.",
    minutes=20,
    measure=measure,
    root=True,
    drawn={
        "loss_by_bytes": Drawn(
            {
                "fp32": "fp32, 64 bits",
                "bf16": "bf16, 32 bits",
                ONE_SERVER: "THC, server, 12 bits",
                DEFAULT: "THC, ranks (default)",
                "PowerSGD, rank 4": "PowerSGD, rank 4",
            },
            title="Loss of a small GPT, 4 workers, by bytes (mean of 5 seeds)",
            y="held-out loss [nats per character]",
        ),
        "steps_by_bandwidth": Drawn({scheme: scheme for scheme in IN_README}),
    },
)
