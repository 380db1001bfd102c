"""Averages of ranks that decode each other's codes, as trainings make them, and verdicts of loss_by_bits on losses."""

import block_reference
import numpy as np
import pytest
import torch
from averages.averagers import FP32, Scheme, make
from averages.loss_curves import Curve, Errors, Metered, mean_steps, steps_to
from averages.power_sgd import PowerSgd
from averages.ranks import RankCodes, RanksAverager
from claims import loss_by_bits as claim
from pages.style import style_of
from reference import Key
from trainings.train import MODELS, Losses

RANKS, SIZES = 3, (5000, 70, 9000, 1024)
TENSORS = [slice(0, 5000), slice(5000, 5070), slice(5070, 14070), slice(14070, 15094)]


def gradients() -> torch.Tensor:
    return torch.randn(RANKS, sum(SIZES), generator=torch.Generator().manual_seed(1))


def test_averages_are_the_reference_s_in_every_round() -> None:
    averager, own = make(RankCodes(4, 5, seed=7), RANKS, TENSORS), gradients()
    blocks = block_reference.cut([(span.start, span.stop) for span in TENSORS])
    count = len(blocks.starts)
    shards = [blocks.part(count * rank // RANKS, count * (rank + 1) // RANKS) for rank in range(RANKS)]
    expected = np.zeros(sum(SIZES), np.float32)
    for number in range(2):
        for shard in shards:
            block_reference.average(list(own.numpy()), shard, 4, 5, Key(7, 0, number), expected)
        np.testing.assert_array_equal(averager.average(own).numpy(), expected)
    tiles = sum(-(-len(shard.starts) // block_reference.TILE) for shard in shards)
    assert averager.bytes_both_ways == 8 * count * 9 + 2 * 17 * tiles


def test_a_tensor_of_zeros_stays_zero_beside_others() -> None:
    own = gradients()
    own[:, 5000:5070] = 0
    average = RanksAverager(RankCodes(4, 4), TENSORS, RANKS).average(own)
    assert not average[5000:5070].any()
    assert (average - own.mean(dim=0)).norm() < 0.2 * own.mean(dim=0).norm()


def test_codes_that_do_not_clip_have_no_bias() -> None:
    for own in claim.difficult_gradients(1024).values():
        assert claim.bias(RankCodes(4, 4), own, 100) < 1.5


@pytest.mark.parametrize("scheme", [RankCodes(2, 2), PowerSgd(rank=1)])
def test_small_tensors_travel_exactly(scheme: Scheme) -> None:
    """Tensors of fewer elements; the others are averaged as if they were alone."""
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


NAMES = {"fp32": "fp32", "four": "THC, 4 + 4", "three": "THC, 3 + 3", "power": "PowerSGD, rank 4"}
BYTES = {"fp32": 64e6, "four": 8e6, "three": 6e6, "power": 7e6}


def curves(**losses: list[float]) -> dict[str, Curve]:
    """By scheme, one seed, after 10 and 20 steps; schemes without a name here learn nothing."""
    found = {name: Curve(1e9, [Losses([10, 20], [9.0, 9.0])]) for name in ("fp32", *claim.OURS, *claim.PEERS)}
    return found | {NAMES[key]: Curve(BYTES[key], [Losses([10, 20], own)]) for key, own in losses.items()}


def test_the_default_has_the_fewest_bits_that_are_within_the_tolerance_of_all_models() -> None:
    within = curves(fp32=[2.0, 1.0], four=[2.0, 1.002], three=[2.0, 1.002])
    above = curves(fp32=[2.0, 1.0], four=[2.0, 1.002], three=[2.0, 1.004])
    assert claim.default_check({"GPT": above, "CNN": within}).met
    check = claim.default_check({"GPT": within})
    assert not check.met
    assert check.got.startswith("THC, 3 + 3. ")
    above["THC, 4 + 4"].seeds[0].held_out[-1] = 1.01
    assert claim.default_check({"GPT": above}).got.startswith("none. ")


def test_an_interval_beyond_the_tolerance_is_no_default() -> None:
    own = curves(fp32=[2.0, 1.0], four=[2.0, 1.002])
    own["fp32"].seeds.append(Losses([10, 20], [2.0, 1.0]))
    own["THC, 4 + 4"].seeds.append(Losses([10, 20], [2.0, 1.0]))
    assert not claim.fits(own, "THC, 4 + 4")  # .1 % on average, and 12.7 standard errors of .1 %


def test_a_width_above_its_limit_is_named() -> None:
    own = curves(fp32=[2.0, 1.0], four=[2.0, 1.0005], three=[2.0, 1.003])
    four, three, two = claim.limit_checks(own)
    assert four.met
    assert "+0.050%" in four.got
    assert not three.met
    assert three.why
    assert not two.met


def test_a_peer_of_as_many_bits_and_less_loss_is_named() -> None:
    own = curves(fp32=[2.0, 1.0], four=[2.0, 1.002], three=[2.0, 1.004], power=[2.0, 1.003])
    check = claim.bits_check("GPT", own)
    assert not check.met
    assert check.why == "PowerSGD, rank 4 +0.300% ± 0.000% with 7.00 bits"
    own["PowerSGD, rank 4"].seeds[0].held_out[-1] = 1.004
    assert claim.bits_check("GPT", own).met


def test_a_peer_with_fewer_bytes_is_named() -> None:
    """PowerSGD needs fewer bytes until 1.2 of fp32's loss, and gets no further."""
    own = curves(fp32=[2.0, 1.0], four=[2.0, 1.002], three=[2.0, 1.004], power=[2.0, 1.15])
    own["PowerSGD, rank 4"] = Curve(4e6, own["PowerSGD, rank 4"].seeds)
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
    for i, name in enumerate(names):
        style_of(name, names[:i])
    shown = [style_of(name, ()) for name in claim.PLOTTED]
    for key in ("color", "marker"):
        assert len({style[key] for style in shown}) == len(claim.PLOTTED) <= 6
    assert all(any(name.startswith(family) for name in names) for family in (*claim.PLOTTED, *claim.FEEDBACK))
    assert make(FP32, 2, TENSORS).bytes_both_ways == 8 * sum(SIZES)


def test_errors_are_in_units_of_a_coordinate_s_own_size() -> None:
    """The same error in a large and a small coordinate: NMSE has the large one's size, the other metric each one's."""
    exact = torch.tensor([[100.0, 1.0, 0.0]])
    metered = Metered(lambda own: own[0] + torch.tensor([1.0, 1.0, 0.0]))
    for _ in range(5):
        metered(exact)
    assert metered.errors.nmse == pytest.approx(2 / 10_001)
    assert metered.errors.own == pytest.approx((1 / 10_001 + 1 / 2 + 0) / 3)


def test_the_metric_that_orders_schemes_like_their_losses_is_found() -> None:
    own = curves(fp32=[2.0, 1.0])
    names = [name for name in own if name != "fp32"]
    for i, name in enumerate(names):
        own[name] = Curve(1e9, [Losses([10, 20], [2.0, 1.0 + i / 1000])], [Errors(nmse=1 / (i + 1), own=1e-3 * i)])
    check = claim.metric_check("GPT", own)
    assert check.met
    assert check.got == "1.000 and -1.000"


def test_steps_to_a_loss_lie_between_two_measurements() -> None:
    losses = Losses([10, 20, 30], [3.0, 2.0, 1.0])
    assert steps_to(losses, 3.5) == 10
    assert steps_to(losses, 2.0) == 20
    assert steps_to(losses, 1.25) == pytest.approx(27.5)
    assert steps_to(losses, 0.9) is None


def test_losses_that_rise_again_were_there_at_the_first_time() -> None:
    assert steps_to(Losses([10, 20, 30, 40], [3.0, 1.0, 2.0, 1.0]), 2.0) == 15


def test_every_seed_has_its_own_target() -> None:
    fp32 = Curve(8.0, [Losses([10, 20], [2.0, 1.0]), Losses([10, 20], [4.0, 2.0])])
    own = Curve(1.0, [Losses([10, 20], [2.2, 1.0]), Losses([10, 20], [4.2, 2.2])])
    assert own.steps_to(1.2, fp32) == pytest.approx([10 + 10 / 1.2, 10 + 10 * 1.8 / 2.0])
    assert own.excess(fp32) == pytest.approx([0.0, 0.1])
    assert own.means() == pytest.approx([3.2, 1.6])


def test_a_seed_that_does_not_get_there_leaves_no_mean() -> None:
    assert mean_steps([10.0, None]) is None
    assert mean_steps([10.0, 20.0]) == 15
