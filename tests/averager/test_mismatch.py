"""Workers that average different gradients: an error on all workers that names both, before any code is sent."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from byteps_thc import InputError, ServerCodes, TransportError
from byteps_thc._engine.saved_state import sealed

SMALL = ServerCodes(partition_bytes=1 << 14, rotation_block=1024)
SIZE = 3000


def errors_of(team, gradients):
    """Return the error of every worker's average(); None for one that returns."""

    def run(averager, own):
        try:
            averager.average(own)
        except Exception as error:
            return error
        return None

    with ThreadPoolExecutor(len(gradients)) as pool:
        return list(pool.map(run, team.averagers, gradients))


def codes_sent(team):
    return [averager._tools.transport.session.counters()["codes_sent"] for averager in team.averagers]


def assert_refused(team, gradients, own, other):
    """All workers raise InputError; the message of worker w names own[w] and other[w]. No codes, and it is all over."""
    before = [{name: x.copy() for name, x in g.items()} for g in gradients]
    sent = codes_sent(team)
    residuals = [averager.state_dict()["residuals"] for averager in team.averagers]
    for worker, error in enumerate(errors_of(team, gradients)):
        assert isinstance(error, InputError), error
        assert f"this one (worker {worker}) {own[worker]}" in str(error)
        assert other[worker] in str(error)
    assert codes_sent(team) == sent
    for now, then in zip(gradients, before, strict=True):
        for name in then:
            np.testing.assert_array_equal(now[name], then[name])
    for averager, kept in zip(team.averagers, residuals, strict=True):
        for name, residual in averager.state_dict()["residuals"].items():
            np.testing.assert_array_equal(residual, kept.get(name, np.zeros_like(residual)))
        with pytest.raises(TransportError, match="join again on all workers"):
            averager.average(gradients[0])


@pytest.mark.parametrize("ahead", [1, 1_000_000])
def test_steps_of_other_checkpoints(make_team, gradients_of, ahead):
    team = make_team(2, SMALL)
    team.average(gradients_of(2, {"a": SIZE}))
    late = team.averagers[1]
    state = late.state_dict()
    late.load_state_dict(sealed(state | {"step": state["step"] + ahead, "round": state["round"] + ahead}))
    assert_refused(
        team,
        gradients_of(2, {"a": SIZE}),
        ["'a' (3000 elements) in round 1", f"'a' (3000 elements) in round {1 + ahead}"],
        [f"another one the same in round {1 + ahead}", "another one the same in round 1"],
    )


def test_one_of_three_workers_differs(make_team, gradients_of):
    """Also the two that agree with each other find out, whichever side of the third one's fingerprint theirs is on."""
    for job, names in enumerate(["aab", "bba", "aba"]):
        team = make_team(3, SMALL, job=job + 1)
        team.average(gradients_of(3, {"a": SIZE}))
        team.average(gradients_of(3, {"b": SIZE}))
        gradients = [
            {name: x} for name, own in zip(names, gradients_of(3, {"x": SIZE}), strict=True) for x in own.values()
        ]
        others = {"a": "another one 'b'", "b": "another one 'a'"}
        assert_refused(team, gradients, [f"'{name}'" for name in names], [others[name] for name in names])


def test_a_large_gradient_of_which_a_part_was_averaged(make_team, gradients_of):
    """The first pieces are the same, so their codes were added up; the others' were not."""
    team = make_team(2, SMALL)
    gradients = gradients_of(2, {"a": 40_000, "b": SIZE, "c": SIZE})
    gradients[1] = {name: gradients[1][name] for name in ("a", "c", "b")}
    errors = errors_of(team, gradients)
    assert all(isinstance(error, InputError) for error in errors), errors
    assert "this one (worker 0) 'b'" in str(errors[0])
    assert "another one 'b'" in str(errors[1])


def test_workers_left_behind_by_a_quorum_are_not_accused(make_team, gradients_of):
    """One worker is late by several rounds: its sums are over, zeros come back, and it catches up."""
    team = make_team(3, SMALL, quorum=2)
    rounds = [gradients_of(3, {"a": SIZE, "b": SIZE}, seed=seed) for seed in range(8)]

    def run(worker):
        for gradients in rounds:
            team.averagers[worker].average(gradients[worker])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))
    run(2)
    assert team.averagers[2].step == len(rounds)
    for gradients in rounds:
        np.testing.assert_array_equal(gradients[0]["a"], gradients[1]["a"])
