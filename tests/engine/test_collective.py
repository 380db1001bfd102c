"""The engine among ranks on gloo: averages with the oracle's bits, errors, traffic."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gradients import TENSORS, bits, check_case, of_all_ranks

from thc_lab.ranks import run_ranks

PROGRAM = Path(__file__).with_name("engine_rank.py")

#: name, RankCodes, CompressionPolicy, parameter sizes of the buffers, further settings
_CASES: list[dict[str, Any]] = [
    {"name": "default", "sizes": [[40_000, 30, 5000], [9]], "steps": 3},
    {"name": "tiny", "policy": {"bypass_elements": 0}, "sizes": [[1], [], [63], [65, 1], [1024], [1025]]},
    {"name": "pieces", "thc": {"partition_bytes": 1 << 16}, "sizes": [[40_000, 9], [20_001, 1025]]},
    {"name": "1 bit", "thc": {"bits": 1}, "sizes": [[10_007]]},
    {"name": "2 bits", "thc": {"bits": 2}, "sizes": [[10_007]]},
    {"name": "3 up, 8 down", "thc": {"bits": 3, "down_bits": 8}, "sizes": [[10_007]]},
    {"name": "4 bits", "thc": {"bits": 4}, "sizes": [[10_000]]},
    {"name": "4 up, 8 down", "thc": {"bits": 4, "down_bits": 8}, "sizes": [[10_000, 12]]},
    {"name": "7 up, 6 down", "thc": {"bits": 7, "down_bits": 6}, "sizes": [[10_007]]},
    {"name": "8 bits", "thc": {"bits": 8}, "sizes": [[10_000, 7]]},
    {"name": "tensors", "policy": {"bypass_elements": 0}, "sizes": TENSORS},
    {
        "name": "tensors in pieces",
        "thc": {"partition_bytes": 1 << 15},
        "policy": {"bypass_elements": 0},
        "sizes": TENSORS,
    },
    {
        "name": "rows",
        "thc": {"partition_bytes": 1 << 15},
        "sizes": [[30_000, 12, 5000]],
        "width": 50,
        "zeros": [1010, 20_000],
    },
    {"name": "float16", "sizes": [[10_000, 12]], "dtype": "float16"},
    {"name": "bfloat16", "sizes": [[10_000, 12]], "dtype": "bfloat16", "zeros": [0, 4096]},
    {"name": "another seed", "thc": {"seed": 1}, "sizes": [[40_000, 30, 5000], [9]]},
    {"name": "zeros", "sizes": [[10_000, 12]], "zeros": [0, 10_012]},
    # Larger than a thread's smallest share: 2^18 coordinates to encode in two.
    {"name": "three threads", "policy": {"threads": 3}, "sizes": [[1_000_003]]},
    {
        "name": "excluded",
        "thc": {"partition_bytes": 1 << 16},
        "policy": {"exclude": ["0.1", "1.0", "2.0", "2.1"]},
        "sizes": [[30_000, 40_000, 12, 5000], [20_000, 7, 9000], [5000, 6000]],
    },
    {"name": "not a number", "sizes": [[10_000, 12], [5000]], "not_finite": [[1, 1, 0]], "steps": 2},
    {"name": "infinite", "sizes": [[10_000, 12]], "not_finite": [[1, 0, 0]], "value": "-inf"},
    {"name": "an infinite one beside codes", "sizes": [[12, 10_000]], "not_finite": [[1, 0, 0]], "value": "inf"},
]
CASES = [{"thc": {}, "policy": {}, "steps": 1} | case for case in _CASES]
WARM_UP: dict[str, Any] = {
    "name": "warm-up",
    "thc": {},
    "policy": {"warmup_steps": 1, "stop_step": 3},
    "sizes": [[5000, 10], [300]],
    "steps": 5,
}


@pytest.fixture(scope="module", params=["2 ranks", "5 ranks"])
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Reports of all ranks: one launch for all cases."""
    settings = {"cases": [*CASES, WARM_UP]}
    return run_ranks(PROGRAM, int(request.param[0]), tmp_path_factory.mktemp("ranks"), settings=settings)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_averages_equal_the_oracle(reports: list[dict[str, Any]], case: dict[str, Any]) -> None:
    check_case(case, [report[case["name"]] for report in reports])


#: Energy of the error of every tensor, relative to the average's, with normal gradients: of a code of the
#: optimal quantizer, each way.
@pytest.mark.parametrize(
    ("case", "least", "most"),
    [
        ("1 bit", 0.7, 1.6),
        ("2 bits", 0.19, 0.33),
        ("3 up, 8 down", 0.03, 0.045),
        ("4 bits", 0.016, 0.024),
        ("4 up, 8 down", 0.008, 0.013),
        ("default", 0.016, 0.024),
        ("tensors", 0.003, 0.03),
        ("8 bits", 5e-5, 2e-4),
    ],
)
def test_errors_are_those_of_codes(reports: list[dict[str, Any]], case: str, least: float, most: float) -> None:
    """The bound does not come from the oracle."""
    given = next(other for other in CASES if other["name"] == case)
    for number, buffers in enumerate(of_all_ranks(given, len(reports), 0)):
        exact = torch.stack([buffer.gradient for buffer in buffers]).mean(0)
        for part in buffers[0].parameters:
            if part.size < 1024:
                continue
            mine, wanted = (
                values[part.start : part.stop].double() for values in (reports[0][case]["averages"][0][number], exact)
            )
            nmse = float((mine - wanted).square().sum() / wanted.square().sum())
            assert least < nmse < most, (part, nmse)


def test_small_parameters_travel_exactly(reports: list[dict[str, Any]]) -> None:
    exact = torch.stack([buffer.gradient for buffer in of_all_ranks(CASES[0], len(reports), 0)[0]]).mean(0)
    torch.testing.assert_close(reports[0]["default"]["averages"][0][0][40_000:40_030], exact[40_000:40_030])


def test_what_is_not_finite_stays_in_its_tensor(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        first, second = report["not a number"]["averages"][1]
        assert first[:10_000].isnan().any()
        assert first[10_000:].isfinite().all()
        assert second.isfinite().all()
        assert report["infinite"]["averages"][0][0][:10_000].isnan().any()
        beside = report["an infinite one beside codes"]["averages"][0][0]
        assert beside[0] == float("inf")
        assert beside[1:].isfinite().all()


def test_zeros_stay_zeros(reports: list[dict[str, Any]]) -> None:
    """Also rows of an embedding, and whole blocks beside others."""
    for report in reports:
        for case, zeros in (("zeros", slice(0, 10_012)), ("rows", slice(1050, 20_000)), ("bfloat16", slice(0, 4096))):
            for (average,) in report[case]["averages"]:
                assert not average[zeros].any(), case
        assert report["rows"]["averages"][0][0][1000:1010].any(), "the rest of a row that is not all zeros"


def test_seeds_and_rounds_have_errors_of_their_own(reports: list[dict[str, Any]]) -> None:
    first, second = (reports[0][case]["averages"][0][0] for case in ("default", "another seed"))
    assert bits(first) != bits(second)


def test_schedule(reports: list[dict[str, Any]]) -> None:
    ranks = len(reports)
    for step in range(WARM_UP["steps"]):
        for number, buffers in enumerate(of_all_ranks(WARM_UP, ranks, step)):
            exact = torch.stack([buffer.gradient for buffer in buffers]).sum(0) / ranks
            averages = [report["warm-up"]["averages"][step][number] for report in reports]
            assert all(bits(average) == bits(averages[0]) for average in averages)
            near = torch.allclose(averages[0], exact, rtol=1e-6, atol=1e-6)
            assert near == (number == 1 or not 1 <= step < 3), (step, number)


@pytest.mark.parametrize(
    ("case", "messages"),
    [
        # 10,000 coordinates: 157 blocks of 32 bytes. The largest shard of 2 ranks has 79 blocks in 5 tiles, the
        # largest of 5 ranks 32 in 2 tiles.
        ("4 bits", {2: (16 + 2528 + 85,) * 2, 5: (16 + 1024 + 34,) * 2}),
        # And a share of 12 values that travel exactly, behind which codes are aligned.
        ("4 up, 8 down", {2: (48 + 2528 + 85, 48 + 5056 + 85), 5: (32 + 1024 + 34, 32 + 2048 + 34)}),
    ],
)
def test_traffic(reports: list[dict[str, Any]], case: str, messages: dict[int, tuple[int, int]]) -> None:
    """A message to each other rank, and one of each: a header of 16 bytes, exact values, codes, scales."""
    ranks = len(reports)
    sent = sum(-(-message // 16) * 16 for message in messages[ranks])
    for report in reports:
        figures = report[case]
        assert figures["sent_bytes"] == figures["received_bytes"] == (ranks - 1) * sent
        size = 10_000 if case == "4 bits" else 10_012
        plain = 2 * (ranks - 1) / ranks * 4 * size
        assert figures["ratio"] == pytest.approx(plain / figures["sent_bytes"])


def test_there_are_no_residuals(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert report["default"]["residual_norm"] == 0
        assert report["default"]["nmse"] != report["default"]["nmse"], "it is that of error feedback"


def test_memory_for_messages_is_given_back(reports: list[dict[str, Any]]) -> None:
    """Else every round takes more memory."""
    for report in reports:
        assert all(case["lent"] == 0 for case in report.values())


def test_statistics_have_the_times_of_all_stages(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert all(time_ms > 0 for time_ms in report["default"]["times_ms"])
