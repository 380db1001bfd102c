"""Loss of the GPT whose step is timed (claim time_to_loss), so that README's loss and time are of one model."""

from averages.averagers import FP32, Scheme
from averages.loss_curves import train_all
from pages.claim import Check, Claim, Plot, Result, Series, Table

from byteps_thc._engine.policy import CompressionPolicy
from claims.loss_by_bits import DEFAULT, FP32_NAME, OURS, PEERS, RANKS, Curves, excess

STEPS, EVERY = 400, 50
MODEL = "GPT, large"
NAMES = (DEFAULT, "PowerSGD, rank 4", "THC, 3 + 3", "NVFP4 + NVFP4", "bf16")
SCHEMES: dict[str, Scheme] = {FP32_NAME: FP32, **{name: {**OURS, **PEERS}[name] for name in NAMES}}
#: Share above fp32's loss: the interval over seeds of the small GPT from scratch.
MOST = 0.01


def result(curves: Curves) -> Result:
    """curves: one seed by scheme."""
    head = ["scheme", "MB up and down, a rank and step", "last held-out loss", "against fp32"]
    rows = [
        [
            name,
            f"{curve.bytes_both_ways / 1e6:.2f}",
            f"{curve.means()[-1]:.4f}",
            "" if name == FP32_NAME else f"{excess(curves, name):+.2%}",
        ]
        for name, curve in sorted(curves.items(), key=lambda item: -item[1].bytes_both_ways)
    ]
    steps = curves[FP32_NAME].steps
    title = (
        f"GPT of 10.7 M parameters from scratch, {RANKS} ranks with batches of 8 x 128 characters, {steps[-1]} steps"
    )
    above = excess(curves, DEFAULT)
    check = Check(
        f"{DEFAULT}: held-out loss after step {steps[-1]}",
        f"at most {MOST:.0%} above fp32's",
        f"{above:+.2%}",
        above <= MOST,
    )
    series = [Series(name, [float(step) for step in curve.steps], curve.means()) for name, curve in curves.items()]
    plot = Plot("timed_model", title, "steps", "held-out loss [nats]", series)
    data = {name: {"steps": curve.steps, "held_out": curve.means()} for name, curve in curves.items()}
    return Result([check], [Table(f"{title}, one seed", [head, *rows])], [plot], data)


def measure(quick: bool) -> Result:
    """See the module. Quick: two schemes, two steps."""
    schemes = {name: SCHEMES[name] for name in (FP32_NAME, DEFAULT)} if quick else SCHEMES
    steps, every = (2, 1) if quick else (STEPS, EVERY)
    return result(
        train_all(
            MODEL, schemes, workers=RANKS, steps=steps, every=every, seeds=1,
            bypass_elements=CompressionPolicy().bypass_elements,
        )
    )  # fmt: skip


CLAIM = Claim(
    name="timed_model",
    title="Loss of the timed model",
    figure="none",
    paper="none",
    stand_in="400 steps, or 1.6 million characters, stand in for a training to the end. One process has all four "
    "ranks, with one seed.",
    minutes=100,
    measure=measure,
)
