"""What bench_eden measures: errors over EDEN's, by all coordinates and by tensor."""

from __future__ import annotations

import nearest_rounds as rounds
import numpy as np
import pytest
from averages.against_eden import KINDS, Gradients, synthetic
from reference import Key


def test_errors_are_those_of_the_averages() -> None:
    """Of two tensors, one a hundred times as large: the ratio is the large one's, and each has its own."""
    tensors = [slice(0, 4096), slice(4096, 8192)]
    own = np.random.default_rng(1).standard_normal((4, 8192)).astype(np.float32)
    own[:, 4096:] *= 100
    found = Gradients("some", 0.0, tensors, lambda _: own).errors(2, 4, repetitions=3)
    blocks, gradients = rounds.blocks_of(8192, tensors), list(own[:2])
    exact = np.mean(gradients, axis=0, dtype=np.float64)
    errors = np.zeros((2, 2))
    for repetition in range(3):
        key = Key(repetition, 1, 2)
        for way, average in enumerate((rounds.average, rounds.eden_average)):
            squares = np.square(average(gradients, 4, 4, key, blocks) - exact)
            errors[way] += squares[:4096].sum(), squares[4096:].sum()
    assert found.ratio == pytest.approx(errors[0].sum() / errors[1].sum())
    assert found.ratio == pytest.approx(errors[0, 1] / errors[1, 1], rel=1e-3)
    assert found.tensor == pytest.approx((errors[0] / errors[1]).max())
    assert found.nmse == pytest.approx(errors[0].sum() / (3 * np.square(exact).sum()))
    assert 0 < found.noise < 0.2


def test_kinds_are_what_they_are_called() -> None:
    kinds = {gradients.kind: gradients for gradients in synthetic(3, 1 << 14)}
    assert tuple(kinds) == KINDS
    for kind, gradients in kinds.items():
        first, second, _ = gradients.draw(1)
        cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
        assert cosine == pytest.approx(gradients.cosine, abs=0.05), kind
        assert not np.array_equal(gradients.draw(1), gradients.draw(2))
    largest = {kind: np.abs(gradients.draw(1)).max() for kind, gradients in kinds.items()}
    assert largest["lognormal"] > 3 * largest["normal"]
