"""Loss by bits of ranks that decode each other's codes, against fp32 and peers of as few bytes: which default."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from averages.alternatives import TwoHops
from averages.averagers import BF16, FP32, Scheme
from averages.eden import Eden
from averages.loss_curves import Curve, mean_steps, train_all
from averages.power_sgd import PowerSgd
from averages.quantizers import Integers, Microscaling, MsEden, Nvfp4, Quantizer
from averages.ranks import RankCodes, RanksAverager
from baselines import Dgc, SignSgd, TernGrad, TopK
from pages.claim import Check, Claim, Plot, Result, Series, Table
from trainings.train import spread

from byteps_thc._base.arrays import F32
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._scheme.block_plan import BLOCK
from byteps_thc._scheme.decoding.settings import DEFAULT_BITS

RANKS = 4
#: One core, so that other work can run beside it.
PROCESSES = 1
FP32_NAME = "fp32"


def both_ways(quantizer: Quantizer) -> TwoHops:
    return TwoHops(quantizer, quantizer)


#: Bits of codes of gradients and of averages.
WIDTHS = ((8, 8), (6, 6), (5, 5), (4, 5), (4, 4), (3, 4), (3, 3), (2, 2), (1, 1))
OURS: dict[str, Scheme] = {f"THC, {up} + {down}": RankCodes(up, down) for up, down in WIDTHS}
PEERS: dict[str, Scheme] = {
    "bf16": BF16,
    "MXFP8 + MXFP8": both_ways(Microscaling("e4m3")),
    "MXFP4 + MXFP8": TwoHops(Microscaling("e2m1"), Microscaling("e4m3")),
    "NVFP4 + NVFP4": both_ways(Nvfp4(nearest=True)),
    "NVFP4 + NVFP4, random": both_ways(Nvfp4()),
    "MS-EDEN + MS-EDEN": both_ways(MsEden()),
    "MXFP4 + MXFP4": both_ways(Microscaling("e2m1")),
    "int4 + int4, groups of 32": both_ways(Integers(4, 32)),
    "int4 + int4, groups of 128": both_ways(Integers(4, 128)),
    **{f"EDEN {bits} + {bits}": Eden(bits, bits) for bits in (4, 3, 2)},
    "DRIVE 1 + 1": Eden(1, 1),
    "TernGrad": TernGrad(),
    **{f"PowerSGD, rank {rank}": PowerSgd(rank=rank) for rank in (16, 4, 1)},
    "SignSGD": SignSgd(),
    "TopK 10 %": TopK(ratio=0.1),
    "DGC 10 %": Dgc(ratio=0.1),
}
#: Beginnings of names. These keep their losses for the next step, so a step's error does not predict the held-out loss.
FEEDBACK = ("PowerSGD", "SignSGD", "TopK", "DGC")
#: Schemes whose small differences drown in noise.
FEW = ("bf16", "NVFP4 + NVFP4", "MXFP4 + MXFP4", "EDEN 4 + 4", "PowerSGD, rank 4", "TernGrad")
#: Candidates in the order of their bits.
CANDIDATES = ("THC, 3 + 3", "THC, 4 + 4", "THC, 5 + 5")
DEFAULT = f"THC, {DEFAULT_BITS} + {DEFAULT_BITS}"
TOLERANCE = 0.003
#: Losses that bytes are compared at, times fp32's last.
TARGETS = (1.5, 1.2, 1.1, 1.05, 1.02, 1.01, 1 + TOLERANCE)
SHOWN_TARGETS = (1.2, 1.05, 1.02, 1.01, 1 + TOLERANCE)
#: The model whose loss varies least with the seed. Excess over fp32's loss by scheme, at most.
PRECISE = "GPT, fine-tuned"
LIMITS = {"THC, 4 + 4": 0.0006, "THC, 3 + 3": 0.0020, "THC, 2 + 2": 0.0065}
ROUNDS = 300
#: Error of the mean of ROUNDS rounds over the expectation from independent errors, by bits, at most.
MOST_BIAS = {2: 5.0, 3: 2.0, 4: 2.0, 5: 2.0}
#: Least excess over fp32's loss in a plot with a logarithmic axis.
LEAST_SHOWN = 1e-5
PLOTTED = ("THC", "NVFP4", "MXFP", "int4", "EDEN", "PowerSGD")
Curves = dict[str, Curve]


@dataclass(frozen=True)
class Budget:
    """every: steps between losses. peers: their names."""

    steps: int
    every: int
    seeds: int
    peers: tuple[str, ...] = tuple(PEERS)


#: Rounding moves the loss from seed to seed by .4 to 1 % if training starts anew, by .02 % in fine-tuning.
FULL = {PRECISE: Budget(120, 30, 5), "GPT": Budget(200, 40, 15, FEW), "CNN": Budget(200, 40, 15, FEW)}
#: A few steps tell nothing about losses: only the bytes are of use.
QUICK = {"CNN": Budget(10, 5, 1)}


def train(model: str, budget: Budget) -> Curves:
    """Losses of all schemes; small tensors travel exactly."""
    schemes = {FP32_NAME: FP32, **OURS, **{name: PEERS[name] for name in budget.peers}}
    return train_all(
        model, schemes, workers=RANKS, steps=budget.steps, every=budget.every, seeds=budget.seeds,
        bypass_elements=CompressionPolicy().bypass_elements, processes=PROCESSES,
    )  # fmt: skip


def excess(curves: Curves, scheme: str) -> float:
    return statistics.mean(curves[scheme].excess(curves[FP32_NAME]))


def excess_text(curves: Curves, scheme: str) -> str:
    """Relative difference with fp32's last loss, seed by seed."""
    return f"{excess(curves, scheme):+.3%} ± {spread(curves[scheme].excess(curves[FP32_NAME])):.3%}"


def bits(curves: Curves, scheme: str) -> float:
    """Bits of a coordinate both ways. Small tensors, which travel exactly, are included."""
    return 64 * curves[scheme].bytes_both_ways / curves[FP32_NAME].bytes_both_ways


def default_check(curves: dict[str, Curves]) -> Check:
    """The rule that chooses the default. curves: by model."""
    chosen = narrowest(curves)
    losses = (
        f"{scheme}: {', '.join(f'{model} {excess_text(own, scheme)}' for model, own in curves.items())}"
        for scheme in CANDIDATES
    )
    sharp = {model: own for model, own in curves.items() if spread(own[DEFAULT].excess(own[FP32_NAME])) <= TOLERANCE}
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
    """Whether the loss, with its interval, is at most TOLERANCE above fp32's."""
    return excess(curves, scheme) + spread(curves[scheme].excess(curves[FP32_NAME])) <= TOLERANCE


def limit_checks(curves: Curves) -> list[Check]:
    """Limits of PRECISE."""
    return [
        Check(
            f"{PRECISE}: held-out loss after the last step, {name}, {bits(curves, name):.2f} bits",
            f"at most {most:.2%} above fp32's",
            excess_text(curves, name),
            excess(curves, name) <= most,
            "" if excess(curves, name) <= most else f"by seed {by_seed(curves, name)}",
        )
        for name, most in LIMITS.items()
    ]


def by_seed(curves: Curves, scheme: str) -> str:
    return ", ".join(f"{above:+.3%}" for above in curves[scheme].excess(curves[FP32_NAME]))


def bits_check(model: str, curves: Curves) -> Check:
    """No peer trains to less loss than THC with as many bits. Seeds are compared one by one, up to their interval."""
    ours = [name for name in OURS if name in curves]
    least = min(bits(curves, name) for name in ours)
    peers = [name for name in PEERS if name in curves and bits(curves, name) >= least]
    better = [peer for peer in peers if not any(as_good(curves, own, peer) for own in ours)]
    return Check(
        f"{model}: loss of peers that take {least:.2f} bits or more",
        "not less than THC's with as many bits or fewer",
        f"{len(peers) - len(better)} of {len(peers)} peers",
        not better,
        "; ".join(f"{name} {excess_text(curves, name)} with {bits(curves, name):.2f} bits" for name in better),
    )


def as_good(curves: Curves, own: str, peer: str) -> bool:
    """No more bits, and no more loss than the interval over the seeds explains."""
    pairs = zip(curves[own].seeds, curves[peer].seeds, strict=True)
    above = [mine.last / theirs.last - 1 for mine, theirs in pairs]
    return bits(curves, own) <= bits(curves, peer) and statistics.mean(above) - spread(above) <= 0


def rank_correlation(curves: Curves, error: Callable[[Curve], float]) -> float:
    """Spearman's, of errors with the loss above fp32's, over schemes without feedback."""
    names = [name for name in curves if curves[name].errors and not name.startswith((FP32_NAME, *FEEDBACK))]
    columns = ([excess(curves, name) for name in names], [error(curves[name]) for name in names])
    losses, errors = (np.argsort(np.argsort(column)).tolist() for column in columns)
    return statistics.correlation(losses, errors)


def metric_check(model: str, curves: Curves) -> Check:
    """A mean squared error in units of a coordinate's own size predicts losses."""
    own, nmse = (rank_correlation(curves, error) for error in (lambda of: of.own_error, lambda of: of.nmse))
    return Check(
        f"{model}: rank correlation of errors with the loss above fp32's",
        "more for errors in units of a coordinate's own size than for NMSE",
        f"{own:.3f} and {nmse:.3f}",
        own > nmse,
        "" if own > nmse else "schemes whose blocks have similar sizes differ little in either error",
    )


def megabytes_to(curves: Curves, scheme: str, factor: float) -> float | None:
    """Traffic of a rank until the loss is fp32's last, times a factor; None if a seed does not get there."""
    steps = mean_steps(curves[scheme].steps_to(factor, curves[FP32_NAME]))
    return None if steps is None else steps * curves[scheme].bytes_both_ways / 1e6


def least(curves: Curves, schemes: Iterable[str], factor: float) -> tuple[float, str] | None:
    """The least of megabytes_to(), and whose that is."""
    reached = [
        (size, name) for name in schemes if name in curves if (size := megabytes_to(curves, name, factor)) is not None
    ]
    return min(reached, default=None)


def front_check(model: str, curves: Curves) -> Check:
    """Check that THC needs the fewest bytes for every loss that it reaches."""
    reached = lost = 0
    words = []
    for factor in TARGETS:
        own, peer = (least(curves, schemes, factor) for schemes in (OURS, PEERS))
        reached += own is not None
        if own and peer and peer < own:
            lost += 1
            words.append(f"fp32's + {factor - 1:.1%}: {peer[1]} {peer[0]:.3g} MB, {own[1]} {own[0]:.3g} MB")
    return Check(
        f"{model}: bytes to a loss, the least of THC's widths against the least of the peers",
        "fewer, at each loss that THC reaches",
        f"{reached - lost} of {reached} losses",
        not lost,
        "; ".join(words),
    )


def loss_table(model: str, budget: Budget, curves: Curves) -> Table:
    """Table by bits. With feedback, the error is a single step's, which the next one corrects."""
    head = ["scheme", "bits both ways", "last held-out loss", "against fp32", "NMSE", "error by own size"]
    cells = [head]
    for name in sorted(curves, key=lambda name: -bits(curves, name)):
        curve = curves[name]
        compared = ["", "", ""]
        if name != FP32_NAME:
            errors = [f"{curve.nmse:.3g}", f"{curve.own_error:.3g}"] if curve.errors else ["", ""]
            compared = [excess_text(curves, name), *errors]
        cells.append([name, f"{bits(curves, name):.2f}", f"{curve.means()[-1]:.4f}", *compared])
    coordinates = curves[FP32_NAME].bytes_both_ways / 8
    return Table(
        f"{model} of {coordinates / 1e3:.0f} k parameters, {RANKS} ranks, {budget.steps} steps, {budget.seeds} seeds. "
        "Error by own size: squared error of a coordinate over its running mean square. Rank correlation with the "
        f"loss: NMSE {rank_correlation(curves, lambda of: of.nmse):.3f}, error by own size "
        f"{rank_correlation(curves, lambda of: of.own_error):.3f}, both without {', '.join(FEEDBACK)}",
        cells,
    )


def front_table(model: str, curves: Curves) -> Table:
    """Bytes by loss."""
    cells = [["scheme", *(f"fp32's last + {factor - 1:.1%}" for factor in SHOWN_TARGETS)]]
    for name in curves:
        sizes = (megabytes_to(curves, name, factor) for factor in SHOWN_TARGETS)
        cells.append([name, *("" if size is None else f"{size:.3g}" for size in sizes)])
    return Table(f"{model}: MB sent and received by a rank until a loss. Empty: a seed does not reach the loss", cells)


def plot(model: str, budget: Budget, curves: Curves) -> Plot:
    """Losses above fp32's by bits."""
    series = []
    for family in PLOTTED:
        own = sorted((name for name in curves if name.startswith(family)), key=lambda name: bits(curves, name))
        above = [100 * max(excess(curves, name), LEAST_SHOWN) for name in own]
        series.append(Series(family, [bits(curves, name) for name in own], above))
    title = f"{model}, {RANKS} ranks: loss by bits ({budget.seeds} seeds)"
    what = "held-out loss above fp32's [%]"
    return Plot("loss_by_bits", title, "bits of a coordinate, up and down", what, series, "log", "log")


def difficult_gradients(coordinates: int) -> dict[str, F32]:
    """float32[ranks, coordinates] where some coordinates of a block are far larger than others, or ranks agree."""
    random = np.random.default_rng(1)
    normal = random.standard_normal((RANKS, coordinates))
    one_of_block = np.where(np.arange(coordinates) % BLOCK == 5, 100.0, 1.0)
    found = {
        "normal": normal,
        "lognormal, sigma 1.5": normal * np.exp(1.5 * random.standard_normal(coordinates)),
        "one of 64 is 100 times larger": normal * one_of_block,
        "norms of ranks 1, 10, 100, 1": normal * np.array([[1.0], [10.0], [100.0], [1.0]]),
        "copies": np.tile(normal[0], (RANKS, 1)),
    }
    return {name: gradient.astype(np.float32) for name, gradient in found.items()}


def bias(scheme: RankCodes, gradients: F32, rounds: int) -> float:
    """The squared error of the mean over the rounds, over its expectation from independent errors: then 1."""
    exact = gradients.mean(axis=0, dtype=np.float64)
    averager = RanksAverager(scheme, [slice(0, len(exact))], len(gradients))
    total, squares = np.zeros(len(exact)), 0.0
    for _ in range(rounds):
        average = averager.average_rows(gradients)
        total += average
        squares += float(np.square(average - exact).sum())
    return float(np.square(total / rounds - exact).sum()) / (squares / rounds**2)


def bias_checks(gradients: dict[str, F32], rounds: int) -> list[Check]:
    checks = []
    for width, most in MOST_BIAS.items():
        found = {name: bias(RankCodes(width, width), own, rounds) for name, own in gradients.items()}
        met = max(found.values()) <= most
        checks.append(
            Check(
                f"THC, {width} + {width}: error of the mean of {rounds} rounds over independent errors'",
                f"at most {most:.0f}",
                ", ".join(f"{name} {value:.2f}" for name, value in found.items()),
                met,
                "" if met else "codes that clip lean on DRIVE's factor, exact on average only",
            )
        )
    return checks


def measure(quick: bool) -> Result:
    budgets = QUICK if quick else FULL
    curves = {model: train(model, budget) for model, budget in budgets.items()}
    checks = bias_checks(difficult_gradients(1 << (12 if quick else 15)), 20 if quick else ROUNDS)
    if not quick:
        checks = [
            default_check(curves),
            *limit_checks(curves[PRECISE]),
            metric_check(PRECISE, curves[PRECISE]),
            *checks,
        ]
    return result(budgets, curves, checks)


def result(budgets: dict[str, Budget], curves: dict[str, Curves], checks: list[Check]) -> Result:
    """Tables and data of each model, behind the checks."""
    tables, data = list[Table](), dict[str, dict[str, list[float]]]()
    for model, own in curves.items():
        checks = [*checks, bits_check(model, own), front_check(model, own)]
        tables += [loss_table(model, budgets[model], own), front_table(model, own)]
        data[f"{model}: last held-out loss by seed"] = {
            scheme: [round(seed.last, 5) for seed in curve.seeds] for scheme, curve in own.items()
        }
    first = next(iter(curves))
    return Result(checks, tables, [plot(first, budgets[first], curves[first])], data)


CLAIM = Claim(
    name="loss_by_bits",
    title="Loss by bits among ranks",
    figure="none",
    paper="none: its switch and servers only add",
    stand_in="Three small trainings stand in for models of billions of parameters: a GPT of .24 M parameters that "
    "is fine-tuned on the documentation of Python (AdamW), the same GPT from scratch on Python's library, and a CNN "
    "of 10 thousand parameters that reads digits (SGD). Four ranks share one process and the package's kernels. All "
    "schemes send parameters with fewer than 1024 elements exactly. NVFP4 and MXFP have the scales of their "
    "specifications. PowerSGD's trainings use torch's functions on the whole gradient at once. TernGrad, SignSGD, TopK "
    "and DGC pass a server that compresses the average again. DGC's momentum precedes AdamW's.",
    minutes=60,
    measure=measure,
)
