"""CompressionPolicy(collective="all_reduce") on real gloo ranks: the simulation's bits, and the other collective's.

And its twin for devices, on CPU tensors with the CPU's kernels; tests/gpu has the GPU's in Triton's interpreter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from gradients import TENSORS, bits, check_case
from ranks import run_ranks

from byteps_thc import ThcConfig, _core
from byteps_thc.baselines import TopK
from byteps_thc.engines import make_engine, make_row_engine
from byteps_thc.errors import ConfigurationError
from byteps_thc.pipeline.factory import make_server_engine
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.torch.settings import ThcCompression
from byteps_thc.transport.all_reduce import resolve_for_words
from byteps_thc.transport.ranks import HostSums
from byteps_thc.transport.servers import NetworkConfig

ENGINES = Path(__file__).with_name("engine_rank.py")
FRONT_ENDS = Path(__file__).with_name("all_reduce_rank.py")
ALL_REDUCE = CompressionPolicy(collective="all_reduce")
NOBODY = cast(Any, None)  # refused before the process group is asked

#: As in test_collective.py.
_CASES: list[dict[str, Any]] = [
    {"name": "default", "thc": {}, "sizes": [[70_000, 30, 5000], [9]]},
    {
        "name": "tiny",
        "thc": {"rotation_block": 64},
        "policy": {"bypass_elements": 0},
        "sizes": [[1], [], [63], [65, 1]],
    },
    {
        "name": "pieces",
        "thc": {"partition_bytes": 1 << 16, "rotation_block": 4096},
        "sizes": [[100_000], [50_001, 1025]],
    },
    {"name": "sums up to 252", "thc": {"granularity": 63}, "sizes": [[10_000]]},
    {"name": "1-bit codes", "thc": {"bits": 1}, "sizes": [[10_007]]},
    {"name": "3-bit codes", "thc": {"bits": 3}, "sizes": [[10_007]]},
    {"name": "5-bit codes", "thc": {"bits": 5}, "sizes": [[10_007]]},
    {"name": "8-bit codes", "thc": {"bits": 8}, "sizes": [[10_000, 7]]},
    {"name": "no error feedback", "thc": {"error_feedback": False}, "sizes": [[10_000, 12]]},
    {"name": "uniform", "thc": {"uniform_table": True}, "sizes": [[10_000, 12]]},
    {"name": "tensors", "thc": {"bits": 4}, "policy": {"bypass_elements": 0}, "sizes": TENSORS},
    {"name": "float16", "thc": {}, "sizes": [[10_000, 12]], "dtype": "float16"},
    {"name": "bfloat16", "thc": {}, "sizes": [[10_000, 12]], "dtype": "bfloat16"},
    {"name": "three threads", "thc": {}, "policy": {"threads": 3}, "sizes": [[1_000_003]], "steps": 2},
    {"name": "not finite", "thc": {}, "sizes": [[10_000, 12], [5000]], "not_finite": [[1, 2, 0]]},
]
_EXACT = {"error_feedback": True, "down_bits": None}
CASES = [
    {"steps": 3} | case | {"policy": case.get("policy", {}) | {"collective": "all_reduce"}, "thc": thc | case["thc"]}
    for thc, cases in ((_EXACT, _CASES), ({}, [_CASES[0] | {"name": "no setting"}]))
    for case in cases
]
#: Cases of the same table, given, with each of the two collectives.
TABLE = {"granularity": 41, "p": 1 / 64}
PAIRS = [
    case | {"thc": case["thc"] | TABLE} for case in CASES if case["name"] in ("default", "tiny", "pieces", "float16")
]


def renamed(case: dict[str, Any], collective: str) -> dict[str, Any]:
    return case | {"name": f"{case['name']}, {collective}", "policy": case["policy"] | {"collective": collective}}


@pytest.fixture(scope="module", params=["2 ranks", "5 ranks", "3 ranks, device engine"])
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What all ranks report: one launch for all cases."""
    device, ranks = "device" in request.param, int(request.param[0])
    pairs = [renamed(case, collective) for case in PAIRS for collective in ("shards", "all_reduce")]
    cases = [case | {"device": device} for case in (*CASES, *pairs) if fits(case, ranks)]
    return run_ranks(ENGINES, ranks, tmp_path_factory.mktemp("ranks"), settings={"cases": cases})


def fits(case: dict[str, Any], ranks: int) -> bool:
    return case["thc"].get("granularity", 0) * ranks <= 255


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_averages_equal_the_simulation(reports: list[dict[str, Any]], case: dict[str, Any]) -> None:
    if not fits(case, len(reports)):
        with pytest.raises(ConfigurationError, match="is more than 255"):
            resolve_for_words(ThcConfig(**case["thc"]), len(reports))
        return
    check_case(case, [report[case["name"]] for report in reports])


@pytest.mark.parametrize("case", PAIRS, ids=lambda case: case["name"])
def test_both_collectives_have_the_same_bits(reports: list[dict[str, Any]], case: dict[str, Any]) -> None:
    for report in reports:
        one, other = (report[renamed(case, collective)["name"]] for collective in ("shards", "all_reduce"))
        for mine, wanted in zip(other["averages"], one["averages"], strict=True):
            assert [bits(average) for average in mine] == [bits(average) for average in wanted]
        assert {n: bits(r) for n, r in other["residuals"].items()} == {n: bits(r) for n, r in one["residuals"].items()}


def test_statistics(reports: list[dict[str, Any]]) -> None:
    """A byte of each of 10,048 coordinates, padding included, twice around a ring but for the own share of it."""
    ranks = len(reports)
    norms = 5 + 2  # blocks of 8192, 1024, 512, 256 and 64; fingerprint
    for report in reports:
        piece = 4 * norms * (ranks - 1) + 2 * 10_048 * (ranks - 1) // ranks
        assert report["uniform"]["sent_bytes"] == 3 * (piece + 2 * 4 * 12 * (ranks - 1) // ranks)
        assert 0.005 < report["uniform"]["nmse"] < 0.5


@pytest.mark.parametrize(("workers", "code_bits"), [(2, 8), (3, 6), (8, 5), (17, 4), (85, 2), (255, 1)])
def test_words_add_up_in_any_order(workers: int, code_bits: int) -> None:
    """In rings, trees and switches: every grouping of int32 sums has the bytes of the sums."""
    resolved = resolve_for_words(ThcConfig.uniform(1) if code_bits == 1 else ThcConfig(bits=code_bits), workers)
    random = np.random.default_rng(workers)
    count, sums = 64 * 7, HostSums(resolved)
    codes = random.integers(0, 256, (workers, _core.code_bytes(count, code_bits)), dtype=np.uint8)
    codes[:, :40] = 255  # the largest sums
    wanted = torch.zeros(count, dtype=torch.uint8)
    sums.lookup_sum(torch.from_numpy(codes), wanted)
    assert wanted.max() == resolved.table.granularity * workers <= 255
    parts = []
    for mine in codes:
        values = torch.zeros(count, dtype=torch.uint8)
        sums.lookup_sum(torch.from_numpy(mine[None]), values)
        parts.append(values.view(torch.int32))
    while len(parts) > 1:
        one, other = (parts.pop(random.integers(len(parts))) for _ in range(2))
        parts.append(one + other)
    assert torch.equal(parts[0].view(torch.uint8), wanted)


@pytest.mark.parametrize(("workers", "granularity"), [(2, 38), (4, 38), (8, 17), (17, 15), (18, 14), (85, 3)])
def test_the_table_is_chosen_for_sums_of_8_bits(workers: int, granularity: int) -> None:
    config = ThcConfig()
    resolved = resolve_for_words(config, workers)
    assert (resolved.table.granularity, resolved.value_bits) == (granularity, 8)
    assert resolved.table == ThcConfig(value_bits=8).resolve(workers).table
    assert resolved.config is config  # checkpoints are those of the other collective


@pytest.mark.parametrize(
    ("config", "workers", "words"),
    [
        (
            ThcConfig(granularity=64),
            4,
            r"granularity 64 \* 4 ranks = 256 .* use granularity=\"auto\", or at most 63, or",
        ),
        (ThcConfig.paper(), 9, r"granularity 30 \* 9 ranks = 270 .* at most 28, or collective=\"shards\""),
        (ThcConfig.uniform(6), 5, r"granularity 63 \* 5 ranks = 315 .* use at most 5 bits, or collective=\"shards\""),
        (ThcConfig(value_bits=16), 2, r"value_bits=16 does not fit the bytes of a word: leave value_bits out, or coll"),
        (ThcConfig(bits=5, down_bits=6), 2, r"nobody requantizes sums .* leave down_bits and total_bits out, or coll"),
        (ThcConfig(total_bits=11), 2, r"nobody requantizes sums .* leave down_bits and total_bits out, or coll"),
        (ThcConfig(error_feedback=True), 128, r"4-bit codes with granularity 1 .*, or collective=\"shards\""),
        (ThcConfig(bits=1), 256, r"256 ranks have sums above 255, .* use fewer ranks, or collective=\"shards\""),
    ],
)
def test_sums_that_do_not_fit_a_byte_are_refused(config: ThcConfig, workers: int, words: str) -> None:
    with pytest.raises(ConfigurationError, match=r"CompressionPolicy\(collective=\"all_reduce\"\): " + words):
        resolve_for_words(config, workers)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: make_engine(NOBODY, TopK(), ALL_REDUCE), r"baselines \(TopK\)"),
        (lambda: make_row_engine(NOBODY, ThcConfig(), ALL_REDUCE, torch.device("cpu")), "FSDP2's reduce-scatters"),
        (
            lambda: make_server_engine(NetworkConfig(["127.0.0.1"]), ThcConfig(), ALL_REDUCE, 0, 2),
            "servers and switches",
        ),
        (lambda: ThcCompression(servers=["127.0.0.1"], policy=ALL_REDUCE), "BytePS's servers, thc-ps and switches"),
    ],
    ids=["baseline", "reduce-scatter", "servers", "BytePS"],
)
def test_it_is_refused_where_nobody_adds_table_values(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words + r" have no all-reduce of table values: leave collective out"):
        make()


@pytest.fixture(scope="module")
def front_ends(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(FRONT_ENDS, 4, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("scenario", ["ddp", "mesh", "mesh_device", "replicas", "reducer"])
def test_front_ends_have_the_bits_of_the_other_collective(front_ends: list[dict[str, Any]], scenario: str) -> None:
    for report in front_ends:
        shards, summed = report[scenario]["shards"], report[scenario]["all_reduce"]
        assert shards["averages"].keys() == summed["averages"].keys()
        assert all(bits(summed["averages"][name]) == bits(average) for name, average in shards["averages"].items())
        assert any(
            not torch.equal(average, report[scenario]["own"][name]) for name, average in summed["averages"].items()
        )
        assert summed["sent_bytes"] > shards["sent_bytes"]  # of 6 or 7-bit sums


def test_ranks_must_have_the_same_collective(front_ends: list[dict[str, Any]]) -> None:
    for report in front_ends:
        assert "collective is 'shards' on rank 0, 'all_reduce' on rank 1, 'shards' on rank 2" in report["differs"]


def test_all_ranks_refuse_what_does_not_fit(front_ends: list[dict[str, Any]]) -> None:
    for report in front_ends:
        assert "granularity 64 * 4 ranks = 256 is more than 255" in report["refused"]
        assert "servers and switches have no all-reduce" in report["servers"]
