"""Accuracy if packets or workers are missing, with and without synchronisation (figures 11 and 16).

Ten workers are simulated; cases of four run in real ranks, too, through a thc-ps.
"""

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from averages.lossy_averager import Losses, LossyAverager
from pages.claim import Check, Claim, Plot, Result, Series, Table
from trainings.replicas import Replicas
from trainings.train import MODELS, mean_and_spread, spread

from byteps_thc import ServerCodes
from byteps_thc._cli.launch import ParameterServer
from thc_lab.ranks import run_ranks

#: The paper's 2,000 steps and five seeds would take this more than forty minutes of a core.
SEEDS = (1, 2, 3)
WORKERS, STEPS = 10, 1000
#: An epoch of the paper's: 50 thousand images, ten workers with 128 each.
SYNCHRONIZE_EVERY = 40
SETTINGS: dict[str, Any] = {
    **{"bits": 4, "granularity": 20, "p": 1 / 512, "rounding": "independent"},
    **{"error_feedback": True, "codes_per_packet": 1024},
}
REAL_WORKERS, REAL_STEPS = 4, 200
RANK_PROGRAM = Path(__file__).with_name("loss_rank.py")
REAL_TIMEOUT_S = 1500.0


@dataclass(frozen=True)
class Case:
    """every: steps between synchronisations; 0: none. most_points: below the case without losses; None: no limit."""

    name: str
    losses: Losses
    every: int = 0
    most_points: float | None = None


@dataclass(frozen=True)
class Ending:
    """End of a training: accuracies in per cent, the mean over the workers."""

    training: float
    held_out: float
    missing: float
    drift: float


NO_LOSS = Case("nothing lost", Losses())
#: A sum needs nine of ten workers, as in the paper.
CASES = (
    NO_LOSS,
    Case(".1 % lost, not synchronised", Losses(0.001, needed=9)),
    Case(".1 % lost, synchronised", Losses(0.001, needed=9), SYNCHRONIZE_EVERY, 0.5),
    Case("1 % lost, not synchronised", Losses(0.01, needed=9)),
    Case("1 % lost, synchronised", Losses(0.01, needed=9), SYNCHRONIZE_EVERY, 1.5),
    *(Case(f"{count} of 10 straggle", Losses(stragglers=count), 0, 0.5) for count in (1, 2, 3)),
)
#: (not synchronised, synchronised)
PAIRS = ((CASES[1], CASES[2], 11), (CASES[3], CASES[4], 24))
#: Faults of real ranks: share of lost datagrams, quorum. Without a quorum thc-ps needs all for a sum.
REAL_CASES: tuple[tuple[Case, float, int | None], ...] = (
    (NO_LOSS, 0.0, None),
    (Case("1 % lost, synchronised", Losses(0.01, needed=REAL_WORKERS), SYNCHRONIZE_EVERY), 0.01, None),
    (Case("quorum of 3 of 4", Losses(stragglers=1), SYNCHRONIZE_EVERY), 0.0, 3),
)

Endings = dict[str, list[Ending]]


def train(case: Case, workers: int, steps: int, seed: int) -> Ending:
    """Train in one process."""
    if not case.losses.lost:
        return train_alike(case, workers, steps, seed)
    replicas = Replicas.of("MLP", workers, steps, "SGD", seed)
    averager = averager_of(case, workers, replicas.all[0].training.tensors, seed)
    for step in range(1, steps + 1):
        replicas.update(averager.average(replicas.gradients()))
        if case.every and step % case.every == 0:
            replicas.synchronize()
    accuracies = [small.accuracies() for small in replicas.all if small.accuracies]
    trained, held_out = (statistics.mean(own) for own in zip(*accuracies, strict=True))
    return Ending(trained, held_out, averager.missing, replicas.drift())


def train_alike(case: Case, workers: int, steps: int, seed: int) -> Ending:
    """Train one model, because all workers get the same averages."""
    small = MODELS["MLP"](workers, steps, "SGD", seed)
    averager = averager_of(case, workers, small.training.tensors, seed)
    for _ in range(steps):
        small.training.update(averager.average(small.training.gradients())[0])
    assert small.accuracies is not None
    return Ending(*small.accuracies(), averager.missing, 0.0)


def averager_of(case: Case, workers: int, tensors: Sequence[slice], seed: int) -> LossyAverager:
    return LossyAverager(ServerCodes(**SETTINGS), workers, tensors[-1].stop, case.losses, seed)


def train_ranks(steps: int, seeds: Sequence[int]) -> Endings:
    """The real cases, in separate processes."""
    with tempfile.TemporaryDirectory() as folder, ParameterServer() as server:
        settings = {
            "servers": [server.address],
            "steps": steps,
            "seeds": list(seeds),
            "synchronize_every": SYNCHRONIZE_EVERY,
            "codes": SETTINGS,
            "cases": [(case.name, lost, quorum) for case, lost, quorum in REAL_CASES],
        }
        found = run_ranks(RANK_PROGRAM, REAL_WORKERS, Path(folder), settings=settings, timeout_s=REAL_TIMEOUT_S)[0]
    endings: Endings = {case.name: [] for case, *_ in REAL_CASES}
    for own in found:
        endings[own["case"]].append(Ending(own["training"], own["held_out"], own["missing"], 0.0))
    return endings


def below(endings: Endings, name: str) -> list[float]:
    """Points of training images below the run without losses, seed by seed."""
    pairs = zip(endings[NO_LOSS.name], endings[name], strict=True)
    return [exact.training - own.training for exact, own in pairs]


def limited(endings: Endings, case: Case) -> Check:
    """The limit of a case's cost."""
    points = below(endings, case.name)
    met = case.most_points is not None and statistics.mean(points) <= case.most_points
    return Check(
        f"{case.name}: accuracy below the run without losses",
        f"at most {case.most_points} points",
        f"{mean_and_spread(points, 2)} points",
        met,
        "" if met else f"{missing(endings, case.name):.1%} of the workers' contributions do not arrive",
    )


def worse_without(endings: Endings, bare: Case, synchronized: Case, paper: int) -> Check:
    """Check that drift causes the cost."""
    lost, kept = below(endings, bare.name), below(endings, synchronized.name)
    more = [a - b for a, b in zip(lost, kept, strict=True)]
    met = statistics.mean(more) > spread(more)
    drift = statistics.mean(own.drift for own in endings[bare.name])
    return Check(
        f"{bare.name}: accuracy below the run without losses",
        f"more than with synchronisation (paper: {paper} points)",
        f"{mean_and_spread(lost, 2)} points, synchronised {mean_and_spread(kept, 2)}",
        met,
        "" if met else f"at the end the workers' parameters are {drift:.1%} apart, which does not cost this model more",
    )


def as_real(simulated: Endings, real: Endings, name: str) -> Check:
    """Means of training and held-out images, whose intervals must meet."""
    words, met = [], True
    for which in ("training", "held_out"):
        ours, theirs = ([getattr(own, which) for own in of[name]] for of in (simulated, real))
        apart = abs(statistics.mean(ours) - statistics.mean(theirs))
        met &= apart <= spread(ours) + spread(theirs)
        kind = which.replace("_", "-")
        words.append(f"{kind} {mean_and_spread(ours, 2)} and {mean_and_spread(theirs, 2)} %")
    shares = f"missing {missing(simulated, name):.1%} and {missing(real, name):.1%}"
    return Check(
        f"{REAL_WORKERS} workers, {name}: simulated, and in real ranks through thc-ps",
        "the same accuracy within the spread over the seeds",
        "; ".join([*words, shares]),
        met,
        "" if met else f"shares of contributions that are missing: simulated and real, {shares}",
    )


def missing(endings: Endings, name: str) -> float:
    return statistics.mean(own.missing for own in endings[name])


def table(title: str, endings: Endings) -> Table:
    """A line for each case."""
    head = ["case", "training images, %", "held-out images, %", "contributions missing", "parameters apart"]
    rows = [
        [
            name,
            mean_and_spread([one.training for one in own], 2),
            mean_and_spread([one.held_out for one in own], 2),
            f"{missing(endings, name):.2%}",
            f"{statistics.mean(one.drift for one in own):.2%}",
        ]
        for name, own in endings.items()
    ]
    return Table(title, [head, *rows])


def plots(endings: Endings) -> list[Plot]:
    """Figure 11: the losses, and the stragglers."""
    lines = {"THC, not synchronised": CASES[1:5:2], "THC, synchronised": CASES[2:5:2]}
    lost = [points(endings, name, [(100 * case.losses.lost, case) for case in of]) for name, of in lines.items()]
    straggling = [points(endings, "THC", [(float(case.losses.stragglers), case) for case in CASES[5:]])]
    y = "points of training images below the run without losses"
    return [
        Plot("packet_loss", "10 workers that lose packets", "packets lost each way, %", y, lost, bars=True),
        Plot("stragglers", "10 workers with stragglers", "stragglers in each round", y, straggling, bars=True),
    ]


def points(endings: Endings, scheme: str, cases: Sequence[tuple[float, Case]]) -> Series:
    """The cases that were measured."""
    found = [(x, below(endings, case.name)) for x, case in cases if case.name in endings]
    return Series(scheme, [x for x, _ in found], [statistics.mean(y) for _, y in found], [spread(y) for _, y in found])


def measure(quick: bool) -> Result:
    """See the module. Quick: 1 % of the packets and one straggler only."""
    cases = (CASES[0], *CASES[3:6]) if quick else CASES
    seeds, steps, real_steps = (SEEDS[:2], 100, 60) if quick else (SEEDS, STEPS, REAL_STEPS)
    endings: Endings = {case.name: [train(case, WORKERS, steps, seed) for seed in seeds] for case in cases}
    simulated: Endings = {
        case.name: [train(case, REAL_WORKERS, real_steps, seed) for seed in seeds] for case, *_ in REAL_CASES
    }
    real = train_ranks(real_steps, seeds)
    checks = [limited(endings, case) for case in cases if case.most_points is not None]
    if not quick:  # nothing drifts far in so few steps
        checks += [worse_without(endings, *pair) for pair in PAIRS]
    checks += [as_real(simulated, real, case.name) for case, *_ in REAL_CASES[1:]]
    tables = [
        table(f"{WORKERS} workers simulated, {steps} steps, mean over workers", endings),
        table(f"{REAL_WORKERS} workers simulated, {real_steps} steps", simulated),
        table(f"{REAL_WORKERS} real ranks through thc-ps, {real_steps} steps", real),
    ]
    found = {"simulated": endings, "common simulated": simulated, "common real": real}
    data = {kind: {name: [asdict(one) for one in own] for name, own in of.items()} for kind, of in found.items()}
    return Result(checks, tables, plots(endings), data)


CLAIM = Claim(
    name="loss_and_stragglers",
    title="Packet loss and stragglers",
    figure="11, 16",
    paper="1 % lost costs 24 points, synchronised 1.5. .1 % lost costs 11 points, synchronised .5. A straggler of 10 "
    "costs none, 2 or 3 cost 5 to 6 points",
    stand_in=(
        "A perceptron of 42 thousand parameters that reads digits, with batches of 16, stands in for ResNet50 on "
        "CIFAR100 with batches of 128. Time limits it to 1,000 steps and three seeds. Workers synchronise every 40 "
        "steps, an epoch of the paper's. Packets have 1024 codes, and a sum needs nine of ten workers. Ten workers are "
        "simulated on the package's kernels. Four also run as DDP ranks through a thc-ps on loopback. Without a quorum "
        "thc-ps needs all workers for a sum, with a quorum it ignores the last one."
    ),
    minutes=20,
    measure=measure,
)
