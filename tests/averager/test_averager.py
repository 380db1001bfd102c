"""GradientAverager through a real thc-ps: right averages, the same on all workers, and errors of bad input."""

import numpy as np
import pytest
import torch

from byteps_thc import Compressor, GradientAverager, ServerCodes, Session
from byteps_thc._base.errors import ConfigurationError, InputError, TransportError

SIZES = {"embedding": 70_001, "bias": 1, "empty": 0, "head": 30_000}
# 16 KiB partitions: `embedding` travels as 18, so the pipeline has something to overlap.
SMALL = ServerCodes(partition_bytes=1 << 14, rotation_block=1024)
FEEDBACK = SMALL.model_copy(update={"error_feedback": True})


def nmse(estimate, truth):
    return float(((estimate - truth) ** 2).sum() / (truth**2).sum())


@pytest.mark.parametrize("config", [SMALL, ServerCodes(), ServerCodes.paper(), ServerCodes.uniform()], ids=str)
def test_average_is_near_and_the_same_everywhere(make_team, gradients_of, config):
    team = make_team(3, config)
    gradients = gradients_of(3, SIZES)
    truth = {name: np.mean([own[name] for own in gradients], axis=0, dtype=np.float64) for name in SIZES}
    team.average(gradients)
    for name in ("embedding", "head"):
        # One worker's variance is about the table's cost; averaging n independent ones leaves an n-th, and so
        # does averaging the gradients: the ratio stays. Clamping adds at most as much again.
        assert nmse(gradients[0][name], truth[name]) < 2 * 1.5e-2
    for own in gradients[1:]:
        for name in SIZES:
            np.testing.assert_array_equal(own[name], gradients[0][name])


def test_zero_rows_stay_zero_in_partitions_that_end_within_rows(make_team, gradients_of):
    team = make_team(2, SMALL, rows=["embedding"])
    gradients = gradients_of(2, {"embedding": 1000 * 70, "head": 5000})
    for own in gradients:
        own["embedding"] = own["embedding"].reshape(1000, 70)
        own["embedding"][np.arange(1000) % 10 > 1] = 0
    truth = {name: np.mean([own[name] for own in gradients], axis=0) for name in gradients[0]}
    team.average(gradients)
    assert not gradients[0]["embedding"][~truth["embedding"].any(1)].any()
    for name, exact in truth.items():
        assert nmse(gradients[0][name], exact) < 2 * 1.5e-2
        np.testing.assert_array_equal(gradients[0][name], gradients[1][name])


def test_workers_with_other_rows_are_told(make_team, gradients_of):
    team = make_team(2, SMALL)
    team.averagers[1]._rows = frozenset(["w"])
    gradients = gradients_of(2, {"w": 4000})
    for own in gradients:
        own["w"] = own["w"].reshape(40, 100)
    with pytest.raises(InputError, match="different gradients"):
        team.average(gradients)


def test_gradients_stay_untouched_with_out(make_team, gradients_of):
    team = make_team(2, SMALL)
    gradients = gradients_of(2, {"w": 5000})
    before = [own["w"].copy() for own in gradients]
    out = [{"w": np.zeros(5000, np.float32)} for _ in range(2)]
    team.average(gradients, out)
    for own, old in zip(gradients, before, strict=True):
        np.testing.assert_array_equal(own["w"], old)
    np.testing.assert_array_equal(out[0]["w"], out[1]["w"])
    assert out[0]["w"].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_torch_tensors_in_their_own_format(make_team, dtype):
    team = make_team(2, SMALL)
    generator = torch.Generator().manual_seed(1)
    gradients = [{"w": torch.randn(40, 100, generator=generator).to(dtype)} for _ in range(2)]
    truth = torch.stack([own["w"].double() for own in gradients]).mean(0)
    team.average(gradients)
    assert torch.equal(gradients[0]["w"], gradients[1]["w"])
    assert nmse(gradients[0]["w"].double().numpy(), truth.numpy()) < 3e-2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_reaches_everybody_and_leaves_no_trace(make_team, gradients_of, bad):
    team = make_team(2, FEEDBACK)
    gradients = gradients_of(2, {"w": 5000})
    team.average([{name: x.copy() for name, x in own.items()} for own in gradients])
    residuals = [dict(a.state_dict()["residuals"]) for a in team.averagers]
    poisoned = [{name: x.copy() for name, x in own.items()} for own in gradients]
    poisoned[1]["w"][100] = bad
    team.average(poisoned)
    for own in poisoned:
        assert np.isnan(own["w"][:1024]).all()  # the rotation block of the bad element
        assert np.isfinite(own["w"][1024:]).all()
    for averager, old in zip(team.averagers, residuals, strict=True):
        new = averager.state_dict()["residuals"]
        assert all(np.isfinite(residual).all() for residual in new.values())
        np.testing.assert_array_equal(new["w"][:2048], old["w"][:2048])  # the partition of the bad element


def test_arrays_of_different_names_share_no_memory(make_team, gradients_of):
    team = make_team(2, SMALL)
    gradients = gradients_of(2, {"a": 3000, "b": 3000})
    whole = np.zeros(6000, np.float32)
    for out in ({"a": gradients[0]["b"], "b": gradients[0]["a"]}, {"a": whole[:3000], "b": whole[2999:5999]}):
        with pytest.raises(InputError, match=r"'[ab]' and '[ab]' share memory"):
            team.averagers[0].average(gradients[0], out)
    with pytest.raises(InputError, match="share memory"):
        team.averagers[0].average(dict.fromkeys("ab", gradients[0]["a"]))
    team.average(gradients, [{"a": whole[:3000], "b": whole[3000:]}, gradients[1]])
    np.testing.assert_array_equal(whole[3000:], gradients[1]["b"])


def test_bad_input_is_refused_before_anything_is_sent(make_team, gradients_of):
    team = make_team(2, SMALL)
    good = gradients_of(2, {"a": 3000, "b": 3000})
    team.average(good)
    for wrong, reason in (
        ({"a": np.zeros(3000, np.float64), "b": good[0]["b"]}, "'a' is float64, not float32 or float16: pass .astype"),
        ({"a": good[0]["a"], "b": np.zeros(6000, np.float32)[::2]}, "'b' is not C-contiguous"),
        ({"a": good[0]["a"], "b": np.zeros(2999, np.float32)}, "'b' had 3000 elements before and has 2999 now"),
        ({"a": [1.0, 2.0], "b": good[0]["b"]}, "is a list, not a NumPy array or torch tensor"),
    ):
        with pytest.raises(InputError, match=reason):
            team.averagers[0].average(wrong)
    with pytest.raises(InputError, match="no array for gradient 'b'"):
        team.averagers[0].average(good[0], out={"a": good[0]["a"]})
    team.average(good)  # the session is as good as before
    np.testing.assert_array_equal(good[0]["a"], good[1]["a"])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda _: {}, "the state lacks version, worker, workers, config, round, step, residuals: pass"),
        (lambda state: state | {"step": -1}, "its step is -1"),
        (lambda state: state | {"residuals": {"w": np.array([np.nan], np.float32)}}, "finite 1-D float32"),
        (lambda state: state | {"worker": 1}, "its worker is 1"),
    ],
)
def test_a_damaged_checkpoint_changes_nothing(make_team, gradients_of, damage, message):
    team = make_team(2, SMALL)
    team.average(gradients_of(2, {"w": 9000}, seed=1))
    averager = team.averagers[0]
    checkpoint = averager.state_dict()
    team.average(gradients_of(2, {"w": 9000}, seed=2))
    before = averager.state_dict()
    with pytest.raises(ConfigurationError, match=message):
        averager.load_state_dict(damage(checkpoint))
    after = averager.state_dict()
    assert after["step"] == before["step"] == 2
    assert after["round"] == before["round"]
    for name, residual in before["residuals"].items():
        np.testing.assert_array_equal(after["residuals"][name], residual)


@pytest.mark.parametrize(
    ("config", "workers", "worker", "setting"),
    [(ServerCodes(seed=2), 2, 0, "codes"), (ServerCodes(), 3, 0, "workers"), (ServerCodes(), 2, 1, "worker")],
)
def test_session_and_compressor_must_agree(thc_ps, config, workers, worker, setting):
    with (
        Session([thc_ps.address], job=1, worker=0, workers=2, codes=ServerCodes()) as session,
        pytest.raises(ConfigurationError, match=f"same {setting}:"),
    ):
        GradientAverager(session, Compressor(config, workers=workers, worker=worker))


def test_an_interrupted_average_is_not_continued(make_team, gradients_of, monkeypatch):
    team = make_team(2, SMALL)
    averager = team.averagers[0]
    own = gradients_of(2, {"w": 5000})[0]

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Compressor, "encode", interrupt)
        patch.setattr(Session, "wait", lambda *_: None)  # the other worker never comes
        with pytest.raises(KeyboardInterrupt):
            averager.average(own)
    with pytest.raises(TransportError, match="interrupted"):
        averager.average(own)


def test_statistics_tell_where_time_went(make_team, gradients_of):
    team = make_team(2, SMALL)
    team.average(gradients_of(2, SIZES))
    stats = team.averagers[0].statistics()
    assert stats.coordinates == sum(SIZES.values())
    assert stats.encode_ms > 0
    assert stats.decode_ms > 0
    assert stats.lost_chunks == 0
