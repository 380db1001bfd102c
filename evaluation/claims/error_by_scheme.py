"""Error of an average by scheme and bits (paper, Figure 2b)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from averages.alternatives import gradients
from averages.cases import Case, real, synthetic
from averages.schemes import Point, nmse, packaged, points, undominated, ways, winner
from pages.claim import Check, Claim, Drawn, Plot, Result, Series, Table
from trainings.train import mean_and_spread

from byteps_thc import ServerCodes

#: Budgets, in bits of a coordinate up and down; scales may take so much more.
BUDGETS, SCALES = (2, 4, 6, 8, 10, 11, 12, 14, 16, 32), 0.5
#: NMSE of the paper's setting, 4 workers, normal vectors.
PAPER_NMSE, TOLERANCE, SEEDS = 20.0e-3, 0.03, 5
#: Least ratio of TernGrad's error to TopK's, and of TopK's to the paper's THC.
APART = 5
#: Gradients of the paper's Figure 15, "which well approximate gradients".
PAPER_KIND = "copies"
PAPER_TERNGRAD, PAPER_TOPK = 6.95, 0.46
#: Rows of the tables; the result's data has all schemes.
SHOWN = (
    *("SignSGD, scaled", "DRIVE 1 + 1", "TernGrad", "TernGrad, no clamp", "QSGD 4 + 4", "EDEN 4 + 4"),
    *(
        "THC, 3 + 3",
        "EDEN 3 + 3",
        "THC, default",
        "SDP4Bit-like 4 + 4, groups of 128",
        "MXFP4 + MXFP4",
        "NVFP4 + NVFP4",
    ),
    *("THC, 5 + 5", "EDEN 5 + 5", "THC, paper", "Uniform THC", "THC, switch, 4 bits", "THC, 4 + 8", "EDEN 4 + 8"),
    *("QSGD 4 + 8, largest of 512", "MXFP4 + MXFP8", "int4 + int8, groups of 64"),
    *("correlated int4 + int8, groups of 64", "THC, 6 + 6", "EDEN 6 + 6", "int6 + int6, groups of 64"),
    *("TopK 10 %", "DGC 10 %", "MXFP8 + MXFP8", "bf16"),
)
#: Drawn families with their labels; all are divided by OURS.
OURS = "THC, default and other bits"
LINES = {
    OURS: "THC, ranks add",
    "THC, switch": "THC, switch adds",
    "EDEN": "EDEN",
    "QSGD": "QSGD",
    "int": "int, scaled groups",
    "MXFP": "MXFP",
}

Measured = Mapping[tuple[str, int], Sequence[Point]]


def measured(cases: Iterator[Case]) -> dict[tuple[str, int], list[Point]]:
    """Points of all schemes by kind and workers."""
    found = {}
    for number, case in enumerate(cases):
        found[case.kind, case.workers] = points(ways(case.workers, case.tensors), case.own, [number])
    return found


def paper_check(coordinates: int) -> Check:
    """Compare the error of the paper's setting with the one that its table and clamp give."""
    run = packaged(ServerCodes.paper(), [slice(0, coordinates)])
    errors = []
    for seed in range(SEEDS):
        own = gradients("normal", 4, np.random.default_rng([20, seed]), coordinates)
        errors.append(1e3 * nmse(run(own, np.random.default_rng(seed))[0], own.mean(axis=0)))
    mean = float(np.mean(errors))
    return Check(
        "NMSE x 1e-3 of the paper's setting, 4 workers, normal vectors",
        f"{1e3 * PAPER_NMSE:.1f} ± {TOLERANCE:.0%}",
        mean_and_spread(errors, 2),
        abs(mean / (1e3 * PAPER_NMSE) - 1) <= TOLERANCE,
    )


@dataclass(frozen=True)
class Order:
    """NMSE with 4 workers of one kind."""

    kind: str
    terngrad: float
    topk: float
    thc: float

    @classmethod
    def of(cls, found: Measured, kind: str, *, clamp: bool) -> "Order":
        errors = {point.name: point.nmse for point in found[kind, 4]}
        terngrad = errors["TernGrad" if clamp else "TernGrad, no clamp"]
        return cls(kind, terngrad, errors["TopK 10 %"], errors["THC, paper"])

    @property
    def holds(self) -> bool:
        return self.terngrad > APART * self.topk > APART**2 * self.thc

    def __str__(self) -> str:
        return f"TernGrad {self.terngrad / self.topk:.1f} x TopK, TopK {self.topk / self.thc:.1f} x THC"


def order_checks(found: Measured) -> list[Check]:
    """Check the paper's order, on its vectors and on all kinds."""
    kinds = [kind for kind, workers in found if workers == 4]
    clamped = [Order.of(found, kind, clamp=True) for kind in kinds]
    most = max(order.terngrad for order in clamped)
    own = Order.of(found, PAPER_KIND, clamp=False)
    expected = f"TernGrad > {APART} x TopK > {APART} x THC"
    fails = [order for order in clamped if not order.holds]
    first = sum(order.terngrad <= APART * order.topk for order in clamped)
    near = [order.topk for order in clamped if order.topk <= APART * order.thc]
    return [
        Check(
            f"order with 4 workers, {PAPER_KIND} of a lognormal vector, TernGrad without clamp",
            f"{expected}, each in the paper's setting",
            f"{own} ({own.terngrad:.2f}, {own.topk:.3f} and {own.thc:.4f})",
            own.holds,
            f"the paper has {PAPER_TERNGRAD} and {PAPER_TOPK}, of gradients that it does not name",
        ),
        Check(
            "same order on all kinds and real gradients, TernGrad with its authors' clamp",
            f"{expected} on each of {len(clamped)}",
            f"holds on {len(clamped) - len(fails)} of {len(clamped)}; "
            + "; ".join(f"{order.kind}: {order}" for order in fails[:3]),
            not fails,
            f"on {first} of {len(clamped)} TernGrad has at most {APART} x TopK's error. Clamped to 2.5 standard "
            f"deviations, TernGrad has an NMSE of {most:.1f} at most, so the paper's {PAPER_TERNGRAD} seems to be "
            f"without the clamp. On {len(near)} TopK has at most {APART} x THC's error: few coordinates have nearly "
            f"all the energy, and TopK loses only {min(near, default=0):.1%} to {max(near, default=0):.1%}. THC's "
            "rotation makes all gradients alike",
        ),
    ]


def frontier_check(found: Measured) -> Check:
    """The winners by budget."""
    winners = [winner(case, budget + SCALES) for case in found.values() for budget in BUDGETS]
    named = [point for point in winners if point is not None and np.isfinite(point.nmse)]
    wins = Counter("THC" if is_thc(point) else point.family for point in named)
    return Check(
        "least error within each budget",
        f"a scheme named at {len(BUDGETS)} budgets of all {len(found)} kinds and numbers of workers",
        f"{len(named)} of {len(winners)} named: "
        + ", ".join(f"{family} {count}" for family, count in wins.most_common()),
        len(named) == len(winners),
        "no scheme takes as few bits",
    )


def is_thc(point: Point) -> bool:
    return "THC" in point.family


def frontier_cell(case: Sequence[Point], budget: float) -> str:
    """Winner and its NMSE x 1e-3; THC in bold, otherwise with THC's best behind it."""
    best = winner(case, budget + SCALES)
    thc = winner([point for point in case if is_thc(point)], budget + SCALES)
    if best is None:
        return ""
    text = f"{best.name}: {1e3 * best.nmse:.3g}"
    if is_thc(best):
        return f"**{text}**"
    return f"{text} (THC {1e3 * thc.nmse:.3g})" if thc else text


def tables(found: Measured) -> list[Table]:
    """The frontier, and errors of some schemes by kind and by workers."""
    frontier = [["gradients", "workers", *(f"{budget} bits" for budget in BUDGETS)]]
    for (kind, workers), case in found.items():
        frontier.append([kind, str(workers), *(frontier_cell(case, budget) for budget in BUDGETS)])
    four = [kind for kind, workers in found if workers == 4]
    normal = [workers for kind, workers in found if kind == "normal"]
    by_kind = errors_table(found, [(kind, 4) for kind in four], four)
    by_workers = errors_table(found, [("normal", n) for n in normal], [f"{n} workers" for n in normal])
    return [
        Table(
            f"Least NMSE x 1e-3 by budget: bits up and down, plus {SCALES} for scales. Bold: THC has the least error. "
            "Brackets: THC's least error with this budget. A switch only adds, and supports THC, switch alone",
            frontier,
        ),
        Table("NMSE x 1e-3 with 4 workers by gradients, bits up and down", by_kind),
        Table("NMSE x 1e-3 of normal vectors by workers, bits up and down with 4 workers", by_workers),
    ]


def errors_table(found: Measured, keys: Sequence[tuple[str, int]], headings: Sequence[str]) -> list[list[str]]:
    """SHOWN, by the bits with 4 workers."""
    errors = {key: {point.name: point.nmse for point in found[key]} for key in keys}
    shown = sorted((point for point in found["normal", 4] if point.name in SHOWN), key=lambda point: point.bits)
    cells = [["scheme", "bits", *headings]]
    for point in shown:
        row = (f"{1e3 * errors[key][point.name]:.3g}" if point.name in errors[key] else "" for key in keys)
        cells.append([point.name, f"{point.bits:.2f}", *row])
    return cells


def plot(name: str, title: str, case: Sequence[Point]) -> Plot:
    """NMSE by bits, a line for each family, through its undominated points."""
    families = dict.fromkeys(point.family for point in case)
    lines = {family: undominated([point for point in case if point.family == family]) for family in families}
    series = [Series(family, [p.bits for p in line], [p.nmse for p in line]) for family, line in lines.items()]
    return Plot(name, title, "bits of a coordinate, up and down", "NMSE of the average", series, y_axis="log")


def data(found: Measured) -> dict[str, Any]:
    """All errors, as text to be small."""
    numbers = sorted({workers for _, workers in found})
    names = dict.fromkeys(point.name for case in found.values() for point in case)
    cases = {key: {point.name: point for point in case} for key, case in found.items()}
    schemes = {}
    for name in names:
        bits = {n: case[name].bits for (_, n), case in reversed(cases.items()) if name in case}
        errors = (f"{1e3 * case[name].nmse:.3g}" if name in case else "-" for case in cases.values())
        schemes[name] = [" ".join(f"{bits[n]:.4g}" if n in bits else "-" for n in numbers), " ".join(errors)]
    return {
        "columns": [f"bits by workers: {numbers}", "NMSE x 1e-3 by kind and workers"],
        "kinds": ", ".join(f"{kind} {workers}" for kind, workers in found),
        "schemes": schemes,
    }


def measure(quick: bool) -> Result:
    coordinates = 1 << (15 if quick else 18)
    found = measured(synthetic((4, 17) if quick else (2, 4, 8, 17, 32, 64), coordinates))
    found |= measured(real(("CNN",), (4,), 10) if quick else real(("GPT", "CNN"), (4, 8), 60))
    checks = [paper_check(max(coordinates, 1 << 17)), *order_checks(found), frontier_check(found)]
    name = "CNN" if quick else "GPT"
    plots = [
        plot("error_normal", "Error by bits, 4 workers, independent normal vectors", found["normal", 4]),
        plot(
            "error_real", f"Error by bits, 4 workers, gradients of a {name} in mid-training", found[f"{name} middle", 4]
        ),
    ]
    return Result([without_reason(check) for check in checks], tables(found), plots, data(found))


def without_reason(check: Check) -> Check:
    """A check that is met needs none."""
    return Check(check.what, check.expected, check.got, check.met) if check.met else check


CLAIM = Claim(
    name="error_by_scheme",
    title="Error of the average",
    figure="2b",
    paper=f"NMSE of 4 workers: TernGrad {PAPER_TERNGRAD}, TopK {PAPER_TOPK}, THC orders of magnitude less",
    stand_in="The paper does not name its gradients. Five kinds of drawn vectors stand in for them, and gradients of "
    "a GPT (1 M parameters) and a CNN (0.7 M), the first quarter of each tensor. One process computes all errors of a "
    "first step with the package's compressors, sums and baselines. In a first step DGC is TopK. A switch supports "
    "codes of 4 bits and 32 workers. Other bits and 64 workers are from a server that adds in 8 bits, too.",
    minutes=12,
    measure=measure,
    drawn={
        f"error_{name}": Drawn(
            LINES, OURS, f"Error against THC's at the same bits, {vectors}", "NMSE of the average / THC's"
        )
        for name, vectors in (("normal", "normal vectors"), ("real", "a GPT's gradients"))
    },
)
