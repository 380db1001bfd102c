"""What time_to_loss computes of losses."""

from __future__ import annotations

import pytest
from averages.loss_curves import Curve, mean_steps, steps_to
from trainings.train import Losses


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
