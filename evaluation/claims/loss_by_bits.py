"""Loss by bits of ranks that decode each other's codes, against fp32 and peers of as few bytes: which default."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from averages.averagers import BF16, FP32, Scheme
from averages.loss_curves import Curve, mean_steps, train_all
from averages.nearest import Nearest
from averages.power_sgd import PowerSgd
from baselines import TernGrad
from pages.claim import Check, Claim, Drawn, Plot, Result, Series, Table
from trainings.train import spread

from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._scheme.rank_settings import DEFAULT_BITS

RANKS = 4
#: One core, so that other work can go on beside it.
PROCESSES = 1
OURS: dict[str, Scheme] = {
    f"THC, {up} + {down}": Nearest(up, down) for up, down in ((5, 5), (4, 4), (5, 6), (3, 3), (2, 2), (1, 1))
}
PEERS: dict[str, Scheme] = {"bf16": BF16, "PowerSGD, rank 4": PowerSgd(rank=4), "TernGrad": TernGrad()}
#: By their bits.
CANDIDATES = ("THC, 4 + 4", "THC, 5 + 5", "THC, 5 + 6")
DEFAULT = f"THC, {DEFAULT_BITS} + {DEFAULT_BITS}"
PLOTTED = ("fp32", "THC, 5 + 5", "THC, 3 + 3", "THC, 2 + 2", "PowerSGD, rank 4", "TernGrad")
TOLERANCE = 0.003
#: Losses that bytes are compared at, times fp32's last.
TARGETS = (1.5, 1.2, 1.1, 1.05, 1.02, 1.01, 1 + TOLERANCE)
Curves = dict[str, Curve]


@dataclass(frozen=True)
class Budget:
    """every: steps between losses."""

    steps: int
    every: int
    seeds: int


#: From seed to seed, rounding moves the loss of a training from the start by .4 to 1 %, of fine-tuning by .02 %.
FULL = {"GPT": Budget(200, 40, 15), "GPT, fine-tuned": Budget(120, 30, 5), "CNN": Budget(200, 40, 15)}
#: A few steps say nothing of losses: only the bytes are of use.
QUICK = {"CNN": Budget(40, 10, 2), "GPT": Budget(6, 2, 1)}


def train(model: str, budget: Budget) -> Curves:
    """Losses of all schemes; small tensors travel exactly."""
    return train_all(
        model, {"fp32": FP32, **OURS, **PEERS}, workers=RANKS, steps=budget.steps, every=budget.every,
        seeds=budget.seeds, bypass_elements=CompressionPolicy().bypass_elements, processes=PROCESSES,
    )  # fmt: skip


def excess_text(curves: Curves, scheme: str) -> str:
    """Relative difference with fp32's last loss, seed by seed."""
    excess = curves[scheme].excess(curves["fp32"])
    return f"{statistics.mean(excess):+.2%} ± {spread(excess):.2%}"


def default_check(curves: dict[str, Curves]) -> Check:
    """The rule that chooses the default. curves: by model."""
    chosen = narrowest(curves)
    losses = (
        f"{scheme}: {', '.join(f'{model} {excess_text(own, scheme)}' for model, own in curves.items())}"
        for scheme in CANDIDATES
    )
    sharp = {model: own for model, own in curves.items() if spread(own[DEFAULT].excess(own["fp32"])) <= TOLERANCE}
    vague = ", ".join(model for model in curves if model not in sharp) or "no model"
    why = (
        f"{vague}: the interval over the seeds is wider than the tolerance, so these losses decide nothing. The others "
        f"({', '.join(sharp) or 'none'}) choose {narrowest(sharp) if sharp else 'nothing'}"
    )
    return Check(
        f"default among ranks, {DEFAULT}",
        f"the fewest bits whose loss is at most {TOLERANCE:.1%} above fp32's on each model, interval included",
        f"{chosen}. {'; '.join(losses)}",
        chosen == DEFAULT,
        "" if chosen == DEFAULT else why,
    )


def narrowest(curves: dict[str, Curves]) -> str:
    """Return the first candidate that fits all models, or "none"."""
    return next((scheme for scheme in CANDIDATES if all(fits(own, scheme) for own in curves.values())), "none")


def fits(curves: Curves, scheme: str) -> bool:
    """At most TOLERANCE above fp32, and its interval too."""
    excess = curves[scheme].excess(curves["fp32"])
    return statistics.mean(excess) + spread(excess) <= TOLERANCE


def standard_error(values: list[float]) -> float:
    """Of the mean over the seeds; 0 for one."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def loss_check(model: str, curves: Curves, scheme: str) -> Check:
    """Whether a width can be the default."""
    met = statistics.mean(curves[scheme].excess(curves["fp32"])) <= TOLERANCE
    seeds = len(curves[scheme].seeds)
    return Check(
        f"{model}: held-out loss after the last step, {scheme} against fp32, {seeds} seeds",
        f"at most {TOLERANCE:.1%} above",
        excess_text(curves, scheme),
        met,
        "" if met else f"bf16 ends {excess_text(curves, 'bf16')} from fp32, {', '.join(others(curves, scheme))}",
    )


def others(curves: Curves, scheme: str) -> list[str]:
    return [f"{name} {excess_text(curves, name)}" for name in OURS if name != scheme]


def megabytes_to(curves: Curves, scheme: str, factor: float) -> float | None:
    """Traffic of a rank until the loss is fp32's last, times a factor; None if a seed does not get there."""
    steps = mean_steps(curves[scheme].steps_to(factor, curves["fp32"]))
    return None if steps is None else steps * curves[scheme].bytes_both_ways / 1e6


def least(curves: Curves, schemes: dict[str, Scheme], factor: float) -> tuple[float, str] | None:
    """The least of megabytes_to(), and whose that is."""
    reached = [(size, name) for name in schemes if (size := megabytes_to(curves, name, factor)) is not None]
    return min(reached, default=None)


def front_check(model: str, curves: Curves) -> Check:
    """At every loss that THC reaches it needs the fewest bytes."""
    reached = lost = 0
    words = []
    for factor in TARGETS:
        own, peer = (least(curves, schemes, factor) for schemes in (OURS, PEERS))
        reached += own is not None
        if own and peer and peer < own:
            lost += 1
            words.append(f"fp32's + {factor - 1:.1%}: {peer[1]} {peer[0]:.3g} MB, {own[1]} {own[0]:.3g} MB")
    return Check(
        f"{model}: bytes to a loss, the least of THC's widths against {', '.join(PEERS)}",
        "fewer, at each loss that THC reaches",
        f"{reached - lost} of {reached} losses",
        not lost,
        "; ".join(words),
    )


def loss_table(model: str, budget: Budget, curves: Curves) -> Table:
    """By scheme."""
    cells = [
        [
            "scheme",
            "bits both ways",
            "KB a step",
            "last held-out loss",
            "against fp32",
            "standard error",
        ]
    ]
    coordinates = curves["fp32"].bytes_both_ways / 8
    for scheme, curve in curves.items():
        excess = curve.excess(curves["fp32"])
        figures = [f"{8 * curve.bytes_both_ways / coordinates:.2f}", f"{curve.bytes_both_ways / 1e3:.1f}"]
        compared = ["", ""] if scheme == "fp32" else [excess_text(curves, scheme), f"{standard_error(excess):.2%}"]
        cells.append([scheme, *figures, f"{curve.means()[-1]:.4f}", *compared])
    of = f"{model} of {coordinates / 1e3:.0f} k parameters, {RANKS} ranks, {budget.steps} steps, {budget.seeds} seeds"
    return Table(of, cells)


def front_table(model: str, curves: Curves) -> Table:
    """Bytes by loss."""
    cells = [["held-out loss", *curves]]
    for factor in TARGETS:
        sizes = (megabytes_to(curves, scheme, factor) for scheme in curves)
        cells.append([f"fp32's last + {factor - 1:.1%}", *("" if size is None else f"{size:.3g}" for size in sizes)])
    return Table(f"{model}: MB sent and received by a rank until a loss. Empty: a seed does not reach the loss", cells)


def plot(model: str, budget: Budget, curves: Curves) -> Plot:
    """Losses by bytes."""
    series = []
    for scheme in PLOTTED:
        curve = curves[scheme]
        sizes = [curve.bytes_both_ways * step / 1e6 for step in curve.steps]
        series.append(Series(scheme, sizes, curve.means(), curve.spreads()))
    title = f"Held-out loss of a small {model}, {RANKS} ranks, by bytes ({budget.seeds} seeds)"
    return Plot("loss_by_bits", title, "sent and received by a rank [MB]", "nats a character", series, x_axis="log")


def measure(quick: bool) -> Result:
    checks, tables, curves = list[Check](), list[Table](), dict[str, Curves]()
    budgets = QUICK if quick else FULL
    for model, budget in budgets.items():
        own = curves[model] = train(model, budget)
        if not quick:
            checks += [loss_check(model, own, scheme) for scheme in CANDIDATES]
        checks.append(front_check(model, own))
        tables += [loss_table(model, budget, own), front_table(model, own)]
        print(f"{model}:", *(f"{scheme} {excess_text(own, scheme)}" for scheme in own), sep="\n", flush=True)
    if not quick:
        checks.insert(0, default_check(curves))
    data = {
        f"{model}: last held-out loss by seed": {
            scheme: [round(seed.last, 5) for seed in curve.seeds] for scheme, curve in own.items()
        }
        for model, own in curves.items()
    }
    return Result(checks, tables, [plot("GPT", budgets["GPT"], curves["GPT"])], data)


CLAIM = Claim(
    name="loss_by_bits",
    title="Loss by bits among ranks",
    figure="none",
    paper="none: its switch and servers only add",
    stand_in="Three small trainings stand in for models of billions of parameters: a GPT of .24 M parameters that "
    "reads Python's library, the same GPT fine-tuned on the language's documentation (AdamW), and a CNN of 10 thousand "
    "parameters that reads digits (SGD). Four ranks share one process and the package's kernels. All schemes send "
    "parameters with fewer than 1024 elements exactly. PowerSGD's trainings use torch's functions on the whole "
    "gradient at once. TernGrad passes a server that compresses the average again.",
    minutes=25,
    measure=measure,
    drawn={
        "loss_by_bits": Drawn(
            {scheme: f"{scheme} (default)" if scheme == DEFAULT else scheme for scheme in PLOTTED},
            y="held-out loss [nats per character]",
        )
    },
)
