"""How `thc demo-switch` keeps to its time: decisions about real P4 models, whose speed is measured."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from thc_lab.demo_switch.cli import DEFAULTS, TIME_LIMIT_S
from thc_lab.demo_switch.pace import Pace
from thc_lab.demo_switch.software_switch import SwitchChoice
from thc_lab.demo_switch.time_limit import FEWEST_STEPS, train_within

V1MODEL, TNA = SwitchChoice("v1model", "model"), SwitchChoice("tna", "model")
MANY = 3 * FEWEST_STEPS

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


def run_s(pace: Pace, steps: int) -> float:
    """Seconds that all three runs of so many steps take."""
    return pace.rest_s + steps * (pace.uncompressed_s + 2 * pace.compressed_s)


def test_what_fits_into_the_time() -> None:
    """The P4 model on two cores, and a Debug build of simple_switch on the same host."""
    model, bmv2 = Pace(0.06, 0.62, 20), Pace(0.06, 5, 20)
    assert model.steps_within(TIME_LIMIT_S) >= DEFAULTS.steps
    assert bmv2.steps_within(TIME_LIMIT_S) == 15
    assert run_s(bmv2, 15) <= TIME_LIMIT_S < run_s(bmv2, 16)
    assert bmv2.steps_within(10) == 0


@needs_root
@pytest.mark.slow
def test_too_slow_a_switch_is_left_for_another_which_trains_fewer_steps() -> None:
    said: list[str] = []
    trained = []
    train_within(
        0.1,  # nothing is fast enough
        [TNA, V1MODEL],
        replace(DEFAULTS, workers=2, steps=MANY, layers=1, width=16),
        said.append,
        lambda settings, choice, train: trained.append((settings, choice, train(lambda _: None))),
    )
    [(settings, choice, results)] = trained
    assert choice == V1MODEL
    assert (settings.steps, settings.judge_loss) == (FEWEST_STEPS, False)
    assert [(result.scheme, len(result.training_loss)) for result in results] == [
        (scheme, FEWEST_STEPS) for scheme in DEFAULTS.schemes
    ]
    assert all(result.workers_agree for result in results)
    first, second, third, fourth = said
    assert first.startswith("Measuring the first steps of the P4 model with p4/programs/tna")
    assert second.endswith(f"time for 0 of {MANY} steps: too slow")
    assert third.startswith("Measuring the first steps of the P4 model with p4/programs/v1model")
    assert f"it is used for {FEWEST_STEPS}, after which losses are not judged" in fourth
