"""Averages of ranks that decode each other's codes, as trainings make them, and what loss_by_bits says of losses."""

from __future__ import annotations

import nearest_reference
import numpy as np
import pytest
import torch
from averages.averagers import FP32, Scheme, make
from averages.loss_curves import Curve
from averages.nearest import Nearest
from averages.power_sgd import PowerSgd
from claims import loss_by_bits as claim
from pages.style import style_of
from reference import Key
from trainings.train import MODELS, Losses

from byteps_thc._scheme.tables.points import lloyd_max, staggered

RANKS, SIZES = 3, (5000, 70, 9000, 1024)
TENSORS = [slice(0, 5000), slice(5000, 5070), slice(5070, 14070), slice(14070, 15094)]


def gradients() -> torch.Tensor:
    return torch.randn(RANKS, sum(SIZES), generator=torch.Generator().manual_seed(1))


def test_averages_are_the_reference_s_in_every_round() -> None:
    averager, own = make(Nearest(4, 5, seed=7), RANKS, TENSORS), gradients()
    blocks = nearest_reference.cut(sum(SIZES), 8192, [span.start for span in TENSORS[1:]])
    points = [staggered(4, rank, RANKS) for rank in range(RANKS)]
    for number in range(2):
        expected = nearest_reference.average(list(own.numpy()), blocks, points, lloyd_max(5), Key(7, 0, number))
        np.testing.assert_array_equal(averager.average(own).numpy(), expected)
    codes = sum(block.codes.stop - block.codes.start for block in blocks)
    assert averager.bytes_both_ways == codes * 9 / 8 + 8 * len(blocks)


@pytest.mark.parametrize("scheme", [Nearest(2, 2), PowerSgd(rank=1)])
def test_small_tensors_travel_exactly(scheme: Scheme) -> None:
    """Those of fewer elements; the others are averaged as if they were alone."""
    shapes = [torch.Size([50, 100]), torch.Size([70]), torch.Size([90, 100]), torch.Size([1024])]
    own, averager = gradients(), make(scheme, RANKS, TENSORS, shapes=shapes, bypass_elements=1024)
    small = torch.zeros(sum(SIZES), dtype=torch.bool)
    small[5000:5070] = True
    moved = [slice(0, 5000), slice(5000, 14000), slice(14000, 15024)]
    alone = make(scheme, RANKS, moved, shapes=[shapes[0], *shapes[2:]])
    average = averager.average(own)
    assert torch.equal(average[small], own.mean(dim=0)[small])
    assert torch.equal(average[~small], alone.average(own[:, ~small].contiguous()))
    assert averager.bytes_both_ways == alone.bytes_both_ways + 8 * 70


def test_fine_tuning_goes_on_where_training_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainings.small_trainings.PRETRAINING_STEPS", 2)
    trained = MODELS["GPT"](1, 2, "AdamW", 3)
    for _ in range(2):
        trained.training.update(trained.training.gradients()[0])
    tuned = MODELS["GPT, fine-tuned"](1, 2, "AdamW", 3).training
    again = MODELS["GPT, fine-tuned"](1, 2, "AdamW", 3).training
    for before, after, same in zip(trained.training.parameters, tuned.parameters, again.parameters, strict=True):
        assert torch.equal(before, after)
        assert torch.equal(after, same)
    tuned.update(tuned.gradients()[0])
    assert not torch.equal(tuned.parameters[0], again.parameters[0])


NAMES = {"fp32": "fp32", "five": "THC, 5 + 5", "four": "THC, 4 + 4", "power": "PowerSGD, rank 4"}
BYTES = {"fp32": 64e6, "five": 10e6, "four": 8e6, "power": 4e6}


def curves(**losses: list[float]) -> dict[str, Curve]:
    """By scheme, one seed, after 10 and 20 steps; those that are not named learn nothing."""
    found = {name: Curve(1e9, [Losses([10, 20], [9.0, 9.0])]) for name in ("fp32", *claim.OURS, *claim.PEERS)}
    return found | {NAMES[key]: Curve(BYTES[key], [Losses([10, 20], own)]) for key, own in losses.items()}


def test_a_width_that_ends_above_fp32_is_no_default() -> None:
    own = curves(fp32=[2.0, 1.0], five=[2.0, 1.002], four=[2.0, 1.004])
    assert claim.loss_check("GPT", own, "THC, 5 + 5").met
    check = claim.loss_check("GPT", own, "THC, 4 + 4")
    assert not check.met
    assert "+0.40%" in check.got


def test_the_default_has_the_fewest_bits_that_are_within_the_tolerance_of_all_models() -> None:
    within = curves(fp32=[2.0, 1.0], five=[2.0, 1.002], four=[2.0, 1.002])
    above = curves(fp32=[2.0, 1.0], five=[2.0, 1.002], four=[2.0, 1.004])
    assert claim.default_check({"GPT": above, "CNN": within}).met
    check = claim.default_check({"GPT": within})
    assert not check.met
    assert check.got.startswith("THC, 4 + 4. ")
    above["THC, 5 + 5"].seeds[0].held_out[-1] = 1.01
    assert claim.default_check({"GPT": above}).got.startswith("none. ")


def test_an_interval_beyond_the_tolerance_is_no_default() -> None:
    own = curves(fp32=[2.0, 1.0], five=[2.0, 1.002])
    own["fp32"].seeds.append(Losses([10, 20], [2.0, 1.0]))
    own["THC, 5 + 5"].seeds.append(Losses([10, 20], [2.0, 1.0]))
    assert not claim.fits(own, "THC, 5 + 5")  # .1 % on average, and 12.7 standard errors of .1 %


def test_a_peer_with_fewer_bytes_is_named() -> None:
    """PowerSGD needs fewer bytes until 1.2 of fp32's loss, and gets no further."""
    own = curves(fp32=[2.0, 1.0], five=[2.0, 1.002], four=[2.0, 1.004], power=[2.0, 1.15])
    check = claim.front_check("GPT", own)
    assert not check.met
    assert check.got == "5 of 7 losses"
    assert "fp32's + 20.0%: PowerSGD, rank 4" in check.why
    assert claim.front_check("GPT", own | {"PowerSGD, rank 4": own["bf16"]}).met


def test_a_loss_that_one_seed_does_not_reach_has_no_bytes() -> None:
    own = curves(fp32=[2.0, 1.0])
    own["fp32"].seeds.append(Losses([10, 20], [2.0, 1.0]))
    own["THC, 5 + 5"] = Curve(1e6, [Losses([10, 20], [2.0, 1.0]), Losses([10, 20], [2.0, 1.5])])
    assert claim.megabytes_to(own, "THC, 5 + 5", 1.5) == pytest.approx((15 + 20) / 2)
    assert claim.megabytes_to(own, "THC, 5 + 5", 1.2) is None


def test_schemes_are_told_apart() -> None:
    names = ["fp32", *claim.OURS, *claim.PEERS]
    styles = [tuple(style_of(name, names[:i]).values()) for i, name in enumerate(names)]
    assert len(set(styles)) == len(names)
    shown = [style_of(name, ()) for name in claim.PLOTTED]
    for key in ("color", "marker"):
        assert len({style[key] for style in shown}) == len(claim.PLOTTED) <= 6
    assert make(FP32, 2, TENSORS).bytes_both_ways == 8 * sum(SIZES)
