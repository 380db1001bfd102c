"""Formats with a scale for 16 to 64 coordinates, among ranks that train with Adam; and blocks of 64, a candidate."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np
from averages.alternatives import TwoHops
from averages.averagers import BF16, FP32, Scheme
from averages.blocks import BLOCK, Blocks, BlocksAverager
from averages.loss_curves import Curve, train_all
from averages.nearest import Nearest
from averages.quantizers import Integers, Microscaling, Nvfp4
from pages.claim import Check, Claim, Result, Table

from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._scheme.arrays import F32
from byteps_thc._scheme.rank_settings import DEFAULT_BITS
from claims.loss_by_bits import excess_text

MODEL = "GPT, fine-tuned"
RANKS = 4
FP32_NAME = "fp32"
DEFAULT = f"THC, {DEFAULT_BITS} + {DEFAULT_BITS}"
OURS: dict[str, Scheme] = {f"THC, {bits} + {bits}": Nearest(bits, bits) for bits in (5, 4, 3, 2)}
CANDIDATES: dict[str, Blocks] = {f"blocks of 64, {bits} + {bits}": Blocks(bits, bits) for bits in (5, 4, 3, 2)}
PEERS: dict[str, Scheme] = {
    "bf16": BF16,
    "MXFP8 + MXFP8": TwoHops(Microscaling("e4m3"), Microscaling("e4m3")),
    "MXFP4 + MXFP8": TwoHops(Microscaling("e2m1"), Microscaling("e4m3")),
    "NVFP4 + NVFP4": TwoHops(Nvfp4(nearest=True), Nvfp4(nearest=True)),
    "NVFP4 + NVFP4, random": TwoHops(Nvfp4(), Nvfp4()),
    "MXFP4 + MXFP4": TwoHops(Microscaling("e2m1"), Microscaling("e2m1")),
    "int4 + int4, groups of 32": TwoHops(Integers(4, 32), Integers(4, 32)),
    "int4 + int4, groups of 128": TwoHops(Integers(4, 128), Integers(4, 128)),
}
#: Bits of the candidate, and the most that its loss may be above fp32's.
LIMITS = {4: 0.0006, 3: 0.0020, 2: 0.0065}
WHY_ABOVE = "scales rounded up, not at random, met it in a simulation of two of these seeds"
ROUNDS = 300
#: Of the error of averages over ROUNDS rounds, as a multiple of what independent errors leave.
MOST_BIAS = {2: 5.0, 3: 2.0, 4: 2.0, 5: 2.0}
Curves = dict[str, Curve]


@dataclass(frozen=True)
class Budget:
    steps: int
    seeds: int


FULL, QUICK = Budget(120, 5), Budget(6, 1)


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


def bias(scheme: Blocks, gradients: F32, rounds: int) -> float:
    """The squared error of the mean over the rounds, over what it is if their errors are independent: then 1."""
    exact = gradients.mean(axis=0, dtype=np.float64)
    averager = BlocksAverager(scheme, [slice(0, len(exact))])
    total, squares = np.zeros(len(exact)), 0.0
    for _ in range(rounds):
        average = averager.average_rows(gradients)
        total += average
        squares += float(np.square(average - exact).sum())
    return float(np.square(total / rounds - exact).sum()) / (squares / rounds**2)


def excess(curves: Curves, scheme: str) -> float:
    return statistics.mean(curves[scheme].excess(curves[FP32_NAME]))


def bits(curves: Curves, scheme: str) -> float:
    """Both ways, of a coordinate; small tensors, which travel exactly, included."""
    return 64 * curves[scheme].bytes_both_ways / curves[FP32_NAME].bytes_both_ways


def limit_checks(curves: Curves) -> list[Check]:
    return [
        Check(
            f"{name}: held-out loss after the last step",
            f"at most {LIMITS[width]:.2%} above fp32's",
            excess_text(curves, name),
            excess(curves, name) <= LIMITS[width],
            "" if excess(curves, name) <= LIMITS[width] else WHY_ABOVE,
        )
        for width in LIMITS
        for name in [f"blocks of 64, {width} + {width}"]
    ]


def default_check(curves: Curves) -> Check:
    """Peers of fewer bytes lose more than the default."""
    better = [
        f"{name} {excess_text(curves, name)} with {bits(curves, name):.2f} bits"
        for name in (*PEERS, *CANDIDATES)
        if bits(curves, name) < bits(curves, DEFAULT) and excess(curves, name) < excess(curves, DEFAULT)
    ]
    return Check(
        f"{DEFAULT}, the default: loss against formats of fewer bytes",
        "less than of each",
        f"{excess_text(curves, DEFAULT)} with {bits(curves, DEFAULT):.2f} bits; {'; '.join(better) or 'no other less'}",
        not better,
        ""
        if not better
        else "its blocks of up to 8192 coordinates spread their error evenly, and Adam divides by "
        "each coordinate's own size: small ones get steps of noise",
    )


def bias_checks(gradients: dict[str, F32], rounds: int) -> list[Check]:
    checks = []
    for width, most in MOST_BIAS.items():
        found = {name: bias(Blocks(width, width), own, rounds) for name, own in gradients.items()}
        checks.append(
            Check(
                f"blocks of 64, {width} + {width}: error of the mean of {rounds} rounds over independent errors'",
                f"at most {most:.0f}",
                ", ".join(f"{name} {value:.2f}" for name, value in found.items()),
                max(found.values()) <= most,
                "" if max(found.values()) <= most else "codes that clip lean on DRIVE's factor, exact on average only",
            )
        )
    return checks


def loss_table(budget: Budget, curves: Curves) -> Table:
    """By bits."""
    cells = [["scheme", "bits both ways", "last held-out loss", "against fp32"]]
    for name in sorted(curves, key=lambda name: -bits(curves, name)):
        compared = "" if name == FP32_NAME else excess_text(curves, name)
        cells.append([name, f"{bits(curves, name):.2f}", f"{curves[name].means()[-1]:.4f}", compared])
    return Table(f"{MODEL}, {RANKS} ranks, AdamW, {budget.steps} steps, {budget.seeds} seeds", cells)


def measure(quick: bool) -> Result:
    """Quick: a few steps and rounds."""
    budget, rounds = (QUICK, 20) if quick else (FULL, ROUNDS)
    curves = train_all(
        MODEL, {FP32_NAME: FP32, **OURS, **CANDIDATES, **PEERS}, workers=RANKS, steps=budget.steps, every=0,
        seeds=budget.seeds, bypass_elements=CompressionPolicy().bypass_elements,
    )  # fmt: skip
    checks = bias_checks(difficult_gradients(1 << (12 if quick else 15)), rounds)
    if not quick:
        checks = [default_check(curves), *limit_checks(curves), *checks]
    losses = {name: [round(seed.last, 5) for seed in curve.seeds] for name, curve in curves.items()}
    return Result(checks, [loss_table(budget, curves)], [], {"last held-out loss by seed": losses})


CLAIM = Claim(
    name="local_scales",
    title="Local scales among ranks",
    figure="none",
    paper="none: its switch adds codes of one scale",
    stand_in="A GPT of .24 M parameters, fine-tuned with AdamW, stands in for models of billions of parameters. Four "
    "ranks share one process. Blocks of 64 are a candidate in NumPy (evaluation/averages/blocks.py): the package does "
    "not have them. Scales of NVFP4 and MXFP are their specifications'. All schemes send parameters with fewer than "
    "1024 elements exactly.",
    minutes=15,
    measure=measure,
)
