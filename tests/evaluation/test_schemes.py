"""Compared schemes are true to their names, and a search of all schemes finds the frontier."""

import numpy as np
import pytest
import torch
from averages.alternatives import gradients
from averages.cases import quarter
from averages.quantizers import F64
from averages.schemes import Point, Way, best_scaled, nmse, points, thc_ways, undominated, ways, winner
from pages.style import style_of
from trainings.windows import Window

COORDINATES = 8192
TENSORS = [slice(0, 5000), slice(5000, COORDINATES)]


def some_points() -> list[Point]:
    random = np.random.default_rng(1)
    bits, errors = random.integers(2, 12, 40), random.integers(1, 30, 40)
    return [Point(str(i), "THC", float(b), float(e)) for i, (b, e) in enumerate(zip(bits, errors, strict=True))]


@pytest.mark.parametrize("bits", [1, 2, 5.5, 11, 40])
def test_the_winner_is_beaten_by_none_within_the_budget(bits: float) -> None:
    within = [point for point in some_points() if point.bits <= bits]
    best = winner(some_points(), bits)
    assert (best is None) == (not within)
    if best is not None:
        assert best in within
        assert best.nmse == min(point.nmse for point in within)


def test_undominated_are_those_that_none_beats() -> None:
    found = some_points()
    kept = undominated(found)
    assert kept == sorted(kept, key=lambda point: point.bits)
    beaten = {
        point.name: any(other.nmse <= point.nmse and other.bits <= point.bits for other in found if other != point)
        for point in found
    }
    pairs = [(point.bits, point.nmse) for point in found]
    assert not any(beaten[point.name] for point in kept if pairs.count((point.bits, point.nmse)) == 1)
    for point in found:
        assert any(other.bits <= point.bits and other.nmse <= point.nmse for other in kept)


def test_all_ways_average() -> None:
    """All have a colour, no two a name, and the bits that their names say."""
    own = gradients("normal, cosine .9", 2, np.random.default_rng(2), COORDINATES)
    all_ways = ways(2, TENSORS)
    found = {point.name: point for point in points(all_ways, own, [1])}
    assert len(found) == len(all_ways)
    for way in all_ways:
        style_of(way.family, [])
    bits = {
        "THC, default": 8.2,
        "THC, 4 + 8": 12.2,
        "THC, 16-bit sums, 3 bits": 19,
        "THC, paper": 12,
        "THC, switch, 2 bits": 10,
        "EDEN 4 + 8": 12,
        "DRIVE 1 + 1": 2,
    }
    bits |= {"QSGD 8 + 8": 16, "TopK 10 %": 12.7, "bf16": 32, "SDP4Bit-like 4 + 4, groups of 128": 8}
    for name, least in bits.items():
        assert least <= found[name].bits < least + 0.3, name
    for point in found.values():
        close = point.name.startswith(("THC, default", "EDEN 4", "int", "bf16"))
        assert 0 < point.nmse < (0.2 if close else 20), point


def test_bits_that_a_switch_s_sums_have_no_levels_for_are_left_out() -> None:
    """8-bit sums of 32 workers leave the 8 levels of 3 bits; 17 workers have all 16."""
    for workers, most in ((2, 7), (17, 4), (32, 3), (64, 2)):
        names = [way.name for way in thc_ways(workers, TENSORS) if way.family == "THC, switch"]
        assert names == [f"THC, switch, {bits} bits" for bits in range(2, most + 1)]


def test_the_best_scale_is_the_best() -> None:
    own = gradients("normal", 3, np.random.default_rng(3), 1000)
    exact = own.mean(axis=0)

    def signs(own: F64, _: np.random.Generator) -> tuple[F64, float]:
        return np.sign(own[0]), 2.0

    (point,) = points([Way("signs", "SignSGD", best_scaled(signs))], own, [1])
    scales = np.linspace(0, 2, 2001)
    assert point.nmse == pytest.approx(min(nmse(scale * np.sign(own[0]), exact) for scale in scales), abs=1e-5)


def test_a_quarter_of_each_tensor() -> None:
    gradients = torch.arange(2 * 40_003.0).view(2, -1) + 1
    own, tensors = quarter(Window("some", gradients, [slice(0, 40_000), slice(40_000, 40_003)]))
    assert tensors == [slice(0, 10_000), slice(10_000, 16_384)]
    np.testing.assert_array_equal(own[:, :10_000], gradients[:, :10_000])
    np.testing.assert_array_equal(own[:, 10_000], gradients[:, 40_000])
    assert not own[:, 10_001:].any()
