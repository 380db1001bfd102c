"""The error of a mismatch that is found after the loss scale has changed, as on devices."""

import numpy as np
import pytest
import torch.distributed as dist

from byteps_thc._base.errors import TransportError
from byteps_thc._engine.fingerprint import LARGEST_WORD, Fingerprints, Known, NormMessage
from byteps_thc._net.transport import DIGEST_WORDS, FINGERPRINT_WORDS
from byteps_thc._scheme.adding.server_codes import ServerCodes


def of_workers(*scales: float) -> list[Fingerprints]:
    workers = [Fingerprints(ServerCodes().resolve(2).identity, worker) for worker in range(len(scales))]
    for fingerprints, scale in zip(workers, scales, strict=True):
        fingerprints.use_loss_scale(scale)
    return workers


def maxima(*words: tuple[int, int]) -> tuple[int, int]:
    largest, complement = (max(column) for column in zip(*words, strict=True))
    return largest, complement


def gradients(fingerprints: Fingerprints) -> tuple[Known, Known]:
    return fingerprints.of(["p"], 8192, "p, 5000 elements"), fingerprints.of(["q"], 8192, "q, 5000 elements")


def test_another_gradient_is_named_after_the_scale_has_been_halved() -> None:
    first, second = of_workers(65536.0, 65536.0)
    p, _ = gradients(first)
    _, q = gradients(second)
    told = maxima(first.words(p, 3), second.words(q, 3))
    assert told[0] + told[1] != LARGEST_WORD
    for own, known, other in ((first, p, "q, 5000"), (second, q, "p, 5000")):
        own.use_loss_scale(32768.0)
        message = str(own.mismatch(known, 3, told))
        assert f"another one {other} elements in round 3" in message
        assert "GradScaler" not in message


def test_scales_that_differed_are_named_after_they_have_changed() -> None:
    first, second = of_workers(2.0, 1024.0)
    (p, _), (also_p, _) = gradients(first), gradients(second)
    told = maxima(first.words(p, 3), second.words(also_p, 3))
    for own, known, here, there in ((first, p, 2, 1024), (second, also_p, 1024, 2)):
        own.use_loss_scale(here / 2)
        message = str(own.mismatch(known, 3, told))
        assert f"scaled by {here}" in message
        assert f"scaled by {there}. Is it the same GradScaler?" in message


def test_a_nan_is_above_all_norms_whatever_its_sign() -> None:
    norms = np.array([0.0, 1.5, np.inf, np.nan, -np.nan, -0.0], np.float32)
    assert np.signbit(norms[4])
    (fingerprints,) = of_workers(1.0)
    message = NormMessage(fingerprints, gradients(fingerprints)[0], norms.size, FINGERPRINT_WORDS)
    message.write(3, norms)
    written = message.sent[FINGERPRINT_WORDS:]
    zero, finite, infinite, nan, negative_nan, negative_zero = written.view(np.int32).tolist()
    assert 0 == zero == negative_zero < finite < infinite < nan == negative_nan
    assert np.isnan(written[3:5]).all()


def test_digests_that_differ_are_told_to_all_workers() -> None:
    norms = np.array([1.5], np.float32)
    messages = [NormMessage(each, gradients(each)[0], 1, FINGERPRINT_WORDS + DIGEST_WORDS) for each in of_workers(1, 1)]
    for digests, same in (((0, 0), True), ((0x80000007, 7), True), ((7, 8), False), ((8, 7), False)):
        for message, digest in zip(messages, digests, strict=True):
            message.digest = digest
            message.write(3, norms)
        largest = np.maximum(*(message.sent.view(np.int32) for message in messages)).view(np.float32)
        for message in messages:
            if same:
                assert message.take(largest) == norms
            else:
                with pytest.raises(TransportError, match="last average of p, 5000 elements differs between workers"):
                    message.take(largest)


def test_a_worker_with_another_number_than_its_rank_is_named_by_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the workers are the replicas of a shard."""
    first, second = of_workers(1.0, 1.0)
    (p, _), (_, q) = gradients(first), gradients(second)
    told = maxima(first.words(p, 3), second.words(q, 3))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    for rank, name in ((1, "(worker 1)"), (2, "(worker 1, rank 2)")):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        assert f"different gradients: this one {name} q, 5000" in str(second.mismatch(q, 3, told))
