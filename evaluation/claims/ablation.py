"""Every part of THC on and off, and the paper's Figure 14 (appendix "Optimizations of THC")."""

import statistics
from collections.abc import Iterable, Sequence

from averages.averagers import FP32
from averages.thc_parts import (
    WORKERS,
    Case,
    Effort,
    Measured,
    Training,
    differences,
    lognormal,
    nmse,
    of_figure_14,
    of_gpt,
    parts,
    same_in_study,
)
from pages.claim import Check, Claim, Drawn, Plot, Result, Series, Table
from trainings.train import mean_and_spread, spread

ALL: tuple[Training, ...] = (("MLP", "SGD"), ("MLP", "AdamW"), ("CNN", "SGD"), ("CNN", "AdamW"))
#: At 4 bits small models show little: two suffice as evidence.
SOME = (ALL[0], ALL[3])
PAPER_BITS, FEW_BITS = 4, 2
#: How much worse than the next the error without rotation is to be.
CLEARLY = 2.0
#: Points of accuracy that rotation brings Uniform THC: the paper's 5, and how far from it these small models may be.
PAPER_POINTS, POINTS_APART = 5.0, 3.0
ERROR = f"NMSE of a first step (GPT's gradients, n = {WORKERS})"
#: Draws of random numbers, to see whether two implementations are the same.
DRAWS = 5
ROTATION_OFF, CLAMP_OFF = "no rotation", "no clamp"
PRINTED = "Algorithm 1 as printed"
UNIFORM, UNIFORM_NO_ROTATION, UNIFORM_NO_FEEDBACK = (
    "Uniform THC",
    "Uniform THC, no rotation",
    "Uniform THC, no feedback",
)


FULL = Effort({FEW_BITS: ALL, PAPER_BITS: SOME}, range(5), {"MLP": 100, "CNN": 80}, 5)
QUICK = Effort({FEW_BITS: SOME, PAPER_BITS: ()}, range(2), {"MLP": 40, "CNN": 30}, 2)


def measure(quick: bool) -> Result:
    effort = QUICK if quick else FULL
    gradients = [lognormal(effort.repetitions), of_gpt(effort.repetitions)]
    exact = Measured(Case("fp32", FP32), [0.0, 0.0])
    for which in dict.fromkeys(which for those in effort.trainings.values() for which in those):
        exact.run(which, effort)
    result = Result(checks=[], data={"fp32": exact.as_data()})
    bars: dict[str, Series] = {}
    alone = [case.name for case in parts(PAPER_BITS)]
    for bits in (PAPER_BITS, FEW_BITS):
        found = [Measured(case, [nmse(case, of) for of in gradients]) for case in (*parts(bits), *of_figure_14(bits))]
        for one in found:
            for which in effort.trainings[bits]:
                one.run(which, effort)
        both = same_in_study(bits), parts(bits)[0]
        study = [(nmse(both[0], of, draws=DRAWS), nmse(both[1], of, draws=DRAWS)) for of in gradients]
        result.checks.extend(checks(bits, found, study))
        result.tables.append(table(bits, found, exact, len(effort.seeds)))
        result.data[f"{bits} bits"] = [one.as_data() for one in found] + [
            {"case": "THC in the study", "nmse": [own for own, _ in study]}
        ]
        add_bars(bars, bits, found)
    for name, title in (
        ("parts", "THC with one part changed"),
        ("figure-14", "Uniform THC, as in the paper's Figure 14"),
    ):
        shown = [one for case, one in bars.items() if (case in alone) == (name == "parts")]
        result.plots.append(Plot(f"ablation-{name}", title, "bits of a code", ERROR, shown, y_axis="log", bars=True))
    return result


def add_bars(bars: dict[str, Series], bits: int, found: Iterable[Measured]) -> None:
    """A bar of every case at these bits, by the case's name."""
    for one in found:
        name = one.case.name
        plain = name.startswith(("THC", UNIFORM, PRINTED))
        series = bars.setdefault(name, Series(name if plain else f"THC, {name}", [], []))
        series.x.append(bits)
        series.y.append(one.nmse[1])


def table(bits: int, found: Sequence[Measured], exact: Measured, seeds: int) -> Table:
    """Losses against THC's of the same bits, seed by seed."""
    base, trainings = found[0], list(found[0].held_out)
    cells = [
        [
            *("case", "ran", "bits up + down", "NMSE, lognormal", "NMSE, GPT"),
            *(f"held-out loss, {name}, {optimizer}" for name, optimizer in trainings),
            *(("training loss, mean", "accuracy, points") if trainings else ()),
        ]
    ]
    for one in (exact, *found):
        errors = [f"{error:.3g}" for error in one.nmse]
        row = [one.case.name, one.case.implementation, one.case.bits(bits), *errors]
        row += [against(one.held_out, base.held_out, [which], 4, absolute=one is base) for which in trainings]
        for results, baseline, digits in ((one.trained, base.trained, 4), (one.accuracy, base.accuracy, 2)):
            row += [against(results, baseline, trainings, digits, absolute=one is base)] if trainings else []
        cells.append(row)
    return Table(
        f"{bits}-bit codes, n = {WORKERS}. Errors are from a first step, without residuals. Losses in nats and "
        "accuracy in points: THC's values, and all others' differences from THC's, seed by seed, mean ± 95 % over "
        f"{seeds} seeds",
        cells,
    )


def against(
    own: dict[Training, list[float]],
    base: dict[Training, list[float]],
    trainings: Sequence[Training],
    digits: int,
    *,
    absolute: bool,
) -> str:
    zero = {which: [0.0] * len(base[which]) for which in trainings}
    values = differences({which: own[which] for which in trainings}, zero if absolute else base)
    return ("" if absolute or statistics.mean(values) < 0 else "+") + mean_and_spread(values, digits)


def checks(bits: int, found: Sequence[Measured], study: Sequence[tuple[float, float]]) -> list[Check]:
    """Checks for these bits, and for trainings if the results have any."""
    by_name = {one.case.name: one for one in found}
    base, off = found[0], by_name[ROTATION_OFF]
    removals = [one for one in found if one.case.removal]
    made = [same(bits, study), *(worst_error(bits, i, kind, base, removals) for i, kind in enumerate(KINDS))]
    if off.held_out:
        made += [worst_loss(bits, base, removals)]
    if off.held_out and bits == PAPER_BITS:
        made += of_paper(by_name)
    return made


KINDS = ("lognormal gradients", "a GPT's gradients")


def same(bits: int, study: Sequence[tuple[float, float]]) -> Check:
    apart = max(abs(own / package - 1) for own, package in study)
    return Check(
        f"the study's THC, where rotation can be off, against the package's ({bits} bits)",
        "NMSE within 3 %",
        f"within {100 * apart:.1f} %",
        apart <= 0.03,
        "" if apart <= 0.03 else "chance: with the same random numbers both average the same (test_ablation.py)",
    )


def worst_error(bits: int, i: int, kind: str, base: Measured, removals: Sequence[Measured]) -> Check:
    """Whether nothing costs like rotation."""
    off = next(one for one in removals if one.case.name == ROTATION_OFF)
    next_one = max((one for one in removals if one is not off), key=lambda one: one.nmse[i])
    ratio = off.nmse[i] / next_one.nmse[i]
    why = "" if next_one.case.name == CLAMP_OFF else "not known"
    if not why:
        kept, without = base.case.table, next_one.case.table
        why = (
            f"with few levels the range counts as much as the rotation. THC clamps 1/{1 / kept.p:.0f} of the "
            f"coordinates, to {kept.threshold:.2g} norms. Without the clamp its levels reach "
            f"{without.threshold:.2g} norms"
        )
    return Check(
        f"no rotation has the largest error of all single removals ({bits} bits, {kind})",
        f"at least {CLEARLY:g}x the next",
        f"{ratio:.2g}x the next, {next_one.case.name} ({off.nmse[i]:.3g} to {next_one.nmse[i]:.3g})",
        ratio >= CLEARLY,
        "" if ratio >= CLEARLY else why,
    )


def worst_loss(bits: int, base: Measured, removals: Sequence[Measured]) -> Check:
    """Check that training losses, free of noise's benefits, suffer most without rotation."""
    lost = {one.case.name: differences(one.trained, base.trained) for one in removals}
    means = {name: statistics.mean(values) for name, values in lost.items()}
    worst = max(means, key=lambda name: means[name])
    met = worst == ROTATION_OFF and means[worst] > spread(lost[worst])
    off = next(one for one in removals if one.case.name == ROTATION_OFF)
    held_out = differences(off.held_out, base.held_out)
    return Check(
        f"no rotation has the largest training loss of all single removals ({bits} bits)",
        "the largest, above THC's by more than the spread",
        f"{mean_and_spread(lost[ROTATION_OFF])} nats above THC's; the worst is {worst}, {mean_and_spread(lost[worst])}",
        met,
        ""
        if met
        else f"an NMSE of {off.nmse[1]:.2g} hardly affects such small models: their held-out loss moves by "
        f"{mean_and_spread(held_out)} nats",
    )


def of_paper(by_name: dict[str, Measured]) -> list[Check]:
    """Figure 14's."""
    uniform = by_name[UNIFORM].accuracy
    lost = [-value for value in differences(by_name[UNIFORM_NO_ROTATION].accuracy, uniform)]
    printed = [-value for value in differences(by_name[PRINTED].accuracy, uniform)]
    points = statistics.mean(lost)
    close = abs(points - PAPER_POINTS) <= POINTS_APART
    feedback = differences(uniform, by_name[UNIFORM_NO_FEEDBACK].accuracy)
    alike = abs(statistics.mean(feedback)) <= max(spread(feedback), 0.5)
    best = [by_name["THC, paper"].nmse[i] < by_name[UNIFORM].nmse[i] for i in range(len(KINDS))]
    return [
        Check(
            "Uniform THC loses accuracy without rotation (4 bits)",
            f"{PAPER_POINTS:g} ± {POINTS_APART:g} points",
            f"{mean_and_spread(lost, 2)} points",
            close,
            ""
            if close
            else "it hardly affects such small models: the NMSE of a GPT's gradients without rotation is "
            f"{by_name[UNIFORM_NO_ROTATION].nmse[1] / by_name[UNIFORM].nmse[1]:.2g}x the NMSE with rotation. "
            f"Algorithm 1 as printed has {by_name[PRINTED].nmse[1] / by_name[UNIFORM].nmse[1]:.2g}x, and loses "
            f"{mean_and_spread(printed, 2)} points",
        ),
        Check(
            "Uniform THC is as good without feedback (4 bits)",
            "within the spread, or .5 points",
            f"feedback brings {mean_and_spread(feedback, 2)} points",
            alike,
            "" if alike else "not known",
        ),
        Check(
            "the paper's table has less error than Uniform THC (4 bits)",
            "on both kinds of gradients",
            f"on {sum(best)} of {len(best)}",
            all(best),
            "" if all(best) else "not known",
        ),
    ]


CLAIM = Claim(
    name="ablation",
    title="Parts of THC, on and off",
    figure="14",
    paper="rotation off costs 5 points of accuracy. Feedback brings little. All parts together are best",
    stand_in="A perceptron and a CNN that read digits, with 4 workers in one process, stand in for RoBERTa on SST2 "
    "with 4 workers. Codes have 2 bits, too, because 4 bits cost such small models nothing. The package cannot switch "
    "off rotation, so cases without rotation run in the study's THC of evaluation/averages. Algorithm 1 as printed "
    "runs there alone.",
    minutes=10,
    measure=measure,
    drawn={
        "ablation-parts": Drawn(
            {
                "THC": "THC",
                "THC, no rotation": "no rotation",
                "THC, no clamp": "no clamp",
                "THC, independent rounding": "independent rounding",
                "THC, uniform table": "uniform table",
                "THC, with ranks that decode": "ranks decode",
            }
        )
    },
)
