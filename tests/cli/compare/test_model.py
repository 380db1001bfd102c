"""The time of a step against hand calculations, and rules for all numbers."""

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._cli.compare.measure import Layout, _bits, _sample, _way
from byteps_thc._cli.compare.model import FASTEST_BPS, HEADERS, SLOWEST_BPS, Way, break_even
from byteps_thc._cli.compare.ranks import POWER_SGD, SERVERS
from byteps_thc._cli.compare.report import Report
from byteps_thc._cli.quantities import (
    parse_bandwidth_bps,
    parse_parameters,
    show_bandwidth,
    show_parameters,
    show_seconds,
)


def way(name: str = "any", processor_s: float = 0.1, link_bits: float = 1e9, buckets: int = 4) -> Way:
    return Way(name, 10.0, 0.003, processor_s, link_bits, buckets)


ways = st.builds(way, processor_s=st.floats(1e-4, 10), link_bits=st.floats(1e6, 1e11), buckets=st.integers(1, 200))
bandwidths = st.floats(SLOWEST_BPS, FASTEST_BPS)


def test_a_step_by_hand() -> None:
    # The link takes 1 s, processors .1 s: one bucket of four waits for them. The other way round at 100 times the rate.
    assert way().step_s(1e9 * HEADERS) == pytest.approx(1.025)
    assert way().step_s(100e9 * HEADERS) == pytest.approx(0.1025)
    # .3 s of a step beside that: .1 s of forward, a quarter of backward and encoding, then the link.
    assert way().step_s(1e9 * HEADERS, compute_s=0.3) == pytest.approx(0.1 + 0.3 / 4 + 1)
    assert way().step_s(100e9 * HEADERS, compute_s=0.3) == pytest.approx(0.3 + 0.1 + 0.01 / 4)


@given(ways, bandwidths, st.floats(1, 100), st.floats(0, 10))
def test_a_faster_link_never_takes_longer(one: Way, bps: float, factor: float, compute_s: float) -> None:
    assert one.step_s(bps * factor, compute_s) <= one.step_s(bps, compute_s)
    assert one.step_s(bps, compute_s) >= max(compute_s + one.processor_s, HEADERS * one.link_bits / bps)


@given(ways, ways, st.floats(0, 1), st.floats(1e6, FASTEST_BPS))
def test_thc_is_faster_on_one_side_of_the_point(thc: Way, peer: Way, compute_s: float, most_bps: float) -> None:
    point = break_even(thc, peer, most_bps, compute_s)
    assert point.below == (thc.link_bits < peer.link_bits)
    assert point.bps is None or SLOWEST_BPS <= point.bps <= most_bps
    if point.bps is not None and SLOWEST_BPS < point.bps < most_bps:
        faster, slower = (point.bps / 1.02, point.bps * 1.02)[:: 1 if point.below else -1]
        assert thc.step_s(faster, compute_s) <= peer.step_s(faster, compute_s)
        assert thc.step_s(slower, compute_s) >= peer.step_s(slower, compute_s) or not point.below


def test_points_by_hand() -> None:
    thc, peer = way("THC", processor_s=0.2, link_bits=1e9), way("fp32", processor_s=0.1, link_bits=4e9)
    point = break_even(thc, peer, 1e12)
    # THC's .2 s and a quarter of the link's time are as long as the link's 4 Gb and .1 s of one bucket.
    assert point.bps == pytest.approx(HEADERS * (4e9 - 0.25e9) / (0.2 - 0.025), rel=0.02)
    assert break_even(thc, peer, 1e9).bps == 1e9  # the processors carry no more
    assert break_even(thc, peer, 1e9).limited
    low = way("PowerSGD", processor_s=0.7, link_bits=1e8, buckets=1)
    assert break_even(thc, low, 1e12).bps == pytest.approx(HEADERS * 0.9e9 / 0.65, rel=0.02)
    assert break_even(way(processor_s=9.0), low, 1e12).bps is None


LAYOUT = Layout(parameters=1000, ranks=8, ranks_per_host=2, cores=1.0, servers=4, device=False)


@pytest.mark.parametrize(
    ("name", "bits", "link_bits"),
    [
        ("fp32", 64, 64 * 7 / 8),  # a ring enters a host once
        ("bf16", 32, 32 * 7 / 8),
        ("THC 5+5", 10 + 34 / 128, (10 + 34 / 128) * 3 / 4),  # between four hosts
        (SERVERS, 12, 2 * 8),  # sums of 8 bits to both ranks of a host
        (POWER_SGD, 64 * (90 * 4 + 10) / 2010, 64 * 370 / 2010 * 7 / 8),  # a matrix of 40 x 50, and its bias
    ],
)
def test_bits_by_hand(name: str, bits: float, link_bits: float) -> None:
    found = _bits(name, 8, [(40, 50), (10,)])
    assert found == pytest.approx(bits)
    assert _way(LAYOUT, name, found, 0.0, 1.0).link_bits == pytest.approx(1000 * link_bits)


def test_a_sample_has_rows_of_every_tensor() -> None:
    import torch

    gradients = {"matrix": torch.ones(100, 30), "bias": torch.ones(30), "scale": torch.tensor(1.0)}
    assert [tuple(value.shape) for value in _sample(gradients, 303)] == [(10, 30), (3,), ()]
    assert [tuple(value.shape) for value in _sample(gradients, 10**6)] == [(100, 30), (30,), ()]


def report(**options: Any) -> Report:
    low = way(POWER_SGD, processor_s=0.7, link_bits=1e8, buckets=1)
    rows = [way("fp32", 0.1, 4e9), low, way("THC 5+5", 0.2, 1e9), way("THC 4+4", 0.05, 9e8), way(SERVERS, 0.3, 1e9)]
    return Report(rows, [1e8, 1e9, 1e10], **{"compute_s": 0.0} | options)


def test_tables_fit_a_terminal_of_80_columns() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    made = report()
    for part in (made.table(), made.points_table(), *made.notes()):
        console.print(part)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    for words in ("Communication of a step", "below 22.", "below 41.8 Gb/s*", "above 1.", "* the highest bandwidth"):
        assert words in text, words
    assert "any bandwidth" not in text
    assert report(compute_s=1.0).table().title == "Step"


def test_json_is_numbers() -> None:
    answer = json.loads(json.dumps(report().as_json()))
    assert answer["break_even"]["THC 5+5"]["fp32"]["below"] is True
    assert [row["name"] for row in answer["ways"]] == [row.name for row in report().ways]
    assert list(answer["ways"][0]["step_s"]) == ["1e+08", "1e+09", "1e+10"]


@pytest.mark.parametrize(("text", "value"), [("25M", 25_000_000), ("1.5B", 1_500_000_000), ("12", 12), ("1e9", 10**9)])
def test_parameters(text: str, value: int) -> None:
    assert parse_parameters(text) == value


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "25 M", "25G", "1e-9", "1e999", "0.1"])
def test_parameters_that_are_none(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--parameters"):
        parse_parameters(text)


@pytest.mark.parametrize(("text", "value"), [("100M", 1e8), ("2.5G", 2.5e9), ("10Gb/s", 1e10), ("1Tbit/s", 1e12)])
def test_bandwidths(text: str, value: float) -> None:
    assert parse_bandwidth_bps(text) == value


@pytest.mark.parametrize("text", ["", "10", "0G", "-1G", "10GB/s", "fast"])
def test_bandwidths_that_are_none(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--bandwidth"):
        parse_bandwidth_bps(text)


def test_numbers_with_units() -> None:
    assert [show_bandwidth(bps) for bps in (2.5e9, 1e8)] == ["2.5 Gb/s", "100 Mb/s"]
    assert [show_parameters(count) for count in (7_000_000_000, 25_000_000, 12)] == ["7 B", "25 M", "12"]
    shown = ["3331 s", "1.5 s", "1 s", "12.3 ms", "1 ms", "45 us", "0 us"]
    assert [show_seconds(seconds) for seconds in (3331.4, 1.5, 0.9999, 0.0123, 0.0009996, 0.000045, 0.0)] == shown
