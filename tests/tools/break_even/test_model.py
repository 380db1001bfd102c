"""The model's arithmetic against hand calculations, and what must hold for all numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_thc.tools.break_even.model import Scheme, bf16_ring, break_even_bps, fp32_ring, thc_collective, thc_network

MEGA, GIGA = 1e6, 1e9


def test_bytes_on_the_link_by_hand() -> None:
    # 4 workers: a ring sends 3/4 of the elements twice. 4-bit codes up and 7-bit codes down of 3/4 of the parameters.
    assert fp32_ring(4).link_bytes == 6.0
    assert bf16_ring(4, 0.0).link_bytes == 3.0
    assert thc_collective(4, 4, 7, 0.0).link_bytes == pytest.approx(0.75 * 11 / 8)
    # 4 + 8 bits: 0.375 of a bf16 ring, for any number of workers.
    for workers in (2, 3, 17, 64):
        assert thc_collective(workers, 4, 8, 0.0).link_bytes / bf16_ring(workers, 0.0).link_bytes == pytest.approx(
            0.375
        )
    # Up and down at the same time: the wider one counts.
    assert thc_network(4, 8, 0.0).link_bytes == 1.0
    assert thc_network(4, 16, 0.0).link_bytes == 2.0


def test_step_times_by_hand() -> None:
    # 25 M parameters at 1 Gb/s: 1 byte each takes 25e6 * 8 / 1e9 = 200 ms, computing 2 ns each takes 50 ms.
    scheme = Scheme("any", link_bytes=1.0, compute_s=2e-9)
    assert scheme.step_s(25_000_000, GIGA, overlapped=False) == pytest.approx(0.250)
    assert scheme.step_s(25_000_000, GIGA, overlapped=True) == pytest.approx(0.200)
    # At 10 Gb/s sending takes 20 ms, and computing is what is left.
    assert scheme.step_s(25_000_000, 10 * GIGA, overlapped=False) == pytest.approx(0.070)
    assert scheme.step_s(25_000_000, 10 * GIGA, overlapped=True) == pytest.approx(0.050)


def test_break_even_points_by_hand() -> None:
    # 2 bytes less and 2 ns more: 1 byte per ns = 8 Gb/s. Overlapped: 3 bytes take 2 ns at 12 Gb/s.
    thc, other = Scheme("THC", 1.0, 2e-9), Scheme("bf16", 3.0, 0.0)
    assert break_even_bps(thc, other, overlapped=False) == pytest.approx(8 * GIGA)
    assert break_even_bps(thc, other, overlapped=True) == pytest.approx(12 * GIGA)
    # The other computes as well: serial, only the difference counts.
    assert break_even_bps(thc, Scheme("bf16", 3.0, 1e-9), overlapped=False) == pytest.approx(16 * GIGA)
    assert break_even_bps(thc, Scheme("bf16", 3.0, 1e-9), overlapped=True) == pytest.approx(12 * GIGA)


def test_what_sending_costs_by_hand() -> None:
    # 3 bytes of 2 ns beside 1 ns, three ranks to a core.
    scheme = Scheme("any", link_bytes=3.0, compute_s=1e-9).carried(2e-9, 3.0)
    assert scheme == Scheme("any", 3.0, pytest.approx(21e-9))


@pytest.mark.parametrize("overlapped", [False, True])
def test_break_even_points_at_the_ends(overlapped: bool) -> None:
    thc = Scheme("THC", 2.0, 1e-9)
    assert break_even_bps(thc, Scheme("sends no more", 2.0, 0.0), overlapped=overlapped) == 0.0
    assert break_even_bps(thc, Scheme("computes as much", 3.0, 1e-9), overlapped=overlapped) == math.inf


link_bytes = st.floats(0.1, 16)
compute_s = st.floats(0, 1e-7)
bandwidths = st.floats(MEGA, 1000 * GIGA)
schemes = st.builds(Scheme, st.just("any"), link_bytes, compute_s)


@given(schemes, st.integers(1, 10**12), bandwidths, st.floats(1, 100))
def test_a_faster_link_never_takes_longer(scheme: Scheme, parameters: int, bps: float, factor: float) -> None:
    for overlapped in (False, True):
        slow_s = scheme.step_s(parameters, bps, overlapped=overlapped)
        assert scheme.step_s(parameters, bps * factor, overlapped=overlapped) <= slow_s


@given(schemes, st.integers(1, 10**12), bandwidths)
def test_overlapping_is_at_best_twice_as_fast(scheme: Scheme, parameters: int, bps: float) -> None:
    best_s = scheme.step_s(parameters, bps, overlapped=True)
    worst_s = scheme.step_s(parameters, bps, overlapped=False)
    assert best_s <= worst_s <= 2 * best_s * (1 + 1e-12)


@given(schemes, schemes, st.booleans(), st.floats(0.01, 0.99))
def test_thc_wins_below_the_break_even_point_and_not_above(
    thc: Scheme, other: Scheme, overlapped: bool, fraction: float
) -> None:
    point_bps = break_even_bps(thc, other, overlapped=overlapped)
    if point_bps == 0.0:
        assert thc.link_bytes >= other.link_bytes
    elif point_bps == math.inf:
        times = [scheme.step_s(1, 10 * GIGA, overlapped=overlapped) for scheme in (thc, other)]
        assert times[0] <= times[1]
    else:
        below, above = ([s.step_s(1, bps, overlapped=overlapped) for s in (thc, other)] for bps in
                        (point_bps * fraction, point_bps / fraction))  # fmt: skip
        # Not below[0] < below[1]: times of links that differ in their last bits are equal after rounding.
        assert below[0] <= below[1] * (1 + 1e-9)
        assert above[0] >= above[1] * (1 - 1e-9)


@given(st.integers(2, 64), st.floats(1e-10, 1e-8), st.floats(1.01, 10))
def test_a_faster_host_wins_up_to_faster_links(workers: int, compute_s: float, factor: float) -> None:
    other = fp32_ring(workers)
    for overlapped in (False, True):
        fast = break_even_bps(thc_collective(workers, 4, 8, compute_s), other, overlapped=overlapped)
        slow = break_even_bps(thc_collective(workers, 4, 8, compute_s * factor), other, overlapped=overlapped)
        assert slow < fast
