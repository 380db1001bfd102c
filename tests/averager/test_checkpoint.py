"""The state of GradientAverager in torch.distributed.checkpoint, like the plug-ins' states."""

from pathlib import Path

import numpy as np
import pytest
import torch.distributed.checkpoint as dcp

from byteps_thc import ServerCodes
from byteps_thc.checkpoint import checkpointable, load

# DCP says so whenever it works for one process alone.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

SMALL = ServerCodes(partition_bytes=1 << 14, rotation_block=1024, error_feedback=True)
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
