"""The state of GradientAverager in torch.distributed.checkpoint, like that of the plug-ins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch.distributed.checkpoint as dcp

from byteps_thc import CheckpointError, ThcConfig
from byteps_thc._engine.saved_state import sealed
from byteps_thc.checkpoint import checkpointable, load

# DCP says so whenever it works for one process alone.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

SMALL = ThcConfig(partition_bytes=1 << 14, rotation_block=1024, error_feedback=True)
SIZES = {"w": 9000, "b": 70, "empty": 0}


def test_a_saved_job_goes_on_bit_by_bit(make_team, gradients_of, tmp_path: Path):
    first = make_team(2, SMALL)
    first.average(gradients_of(2, SIZES, seed=1))
    entries = {key: value for a in first.averagers for key, value in checkpointable(a).state_dict().items()}
    dcp.save({"thc": entries}, checkpoint_id=tmp_path)
    went_on = gradients_of(2, SIZES, seed=2)
    first.average(went_on)

    second = make_team(2, SMALL, job=2)
    for averager in second.averagers:
        load(averager, tmp_path)
        assert averager.step == 1
    resumed = gradients_of(2, SIZES, seed=2)
    second.average(resumed)
    for name in SIZES:
        np.testing.assert_array_equal(resumed[0][name], went_on[0][name])
    # One that has averaged other names does not know the saved ones.
    third = make_team(2, SMALL, job=3)
    third.average(gradients_of(2, {"w": 9000}))
    with pytest.raises(ValueError, match=r"does not have: \['b', 'empty'\]"):
        load(third.averagers[0], tmp_path)


def test_statistics_after_going_back(make_team, gradients_of):
    team = make_team(2, SMALL)
    states = []
    for seed in range(3):
        team.average(gradients_of(2, SIZES, seed=seed))
        states.append([averager.state_dict() for averager in team.averagers])
    norm = team.averagers[0].statistics().residual_norm
    for averager, state in zip(team.averagers, states[1], strict=True):
        averager.load_state_dict(state)
    team.average(gradients_of(2, SIZES, seed=2))  # the third step again
    assert team.averagers[0].statistics().residual_norm == pytest.approx(norm)
    assert 0 < team.averagers[0].statistics().nmse < 0.1


def test_another_number_of_workers_starts_without_residuals(make_team, gradients_of, tmp_path: Path):
    first = make_team(2, SMALL)
    first.average(gradients_of(2, SIZES, seed=1))
    entries = {key: value for a in first.averagers for key, value in checkpointable(a).state_dict().items()}
    dcp.save({"thc": entries}, checkpoint_id=tmp_path)
    second = make_team(3, SMALL, job=2)
    for averager in second.averagers:
        load(averager, tmp_path)
        assert (averager.step, averager.state_dict()["residuals"]) == (1, {})
    with pytest.raises(CheckpointError, match="no entry"):
        load(second.averagers[0], tmp_path, key="other")


def test_a_residual_of_another_size_stops_before_anything_is_sent(make_team, gradients_of):
    team = make_team(2, SMALL)
    for averager in team.averagers:
        averager.load_state_dict(sealed(averager.state_dict() | {"residuals": {"w": np.ones(5, np.float32)}}))
        with pytest.raises(ValueError, match="residual of parameter 'w' has 5 elements and its gradient 9000"):
            averager.average(gradients_of(1, {"w": 9000})[0])
    for averager in team.averagers:
        averager.load_state_dict(sealed(averager.state_dict() | {"residuals": {}}))
    team.average(gradients_of(2, {"w": 9000}))  # the session is as good as before


@pytest.mark.parametrize("codes_per_packet", [1024, "auto"])
def test_a_job_goes_on_with_packets_of_another_size(make_team, gradients_of, codes_per_packet: int | str):
    first = make_team(2, SMALL.model_copy(update={"codes_per_packet": codes_per_packet}))
    first.average(gradients_of(2, SIZES, seed=1))
    second = make_team(2, SMALL.model_copy(update={"codes_per_packet": 2048}), job=2)
    for averager, other in zip(second.averagers, first.averagers, strict=True):
        averager.load_state_dict(other.state_dict())
        assert averager.step == 1
    resumed, again = gradients_of(2, SIZES, seed=2), gradients_of(2, SIZES, seed=2)
    first.average(resumed)
    second.average(again)
    np.testing.assert_array_equal(again[0]["w"], resumed[0]["w"])
