"""FSDP2 with compressed gradients, on real ranks: against uncompressed ones and against the oracle in one process."""

from pathlib import Path

import pytest
import torch
from known_gradients import all_shapes, gradients, mean_of, nmse
from rank_oracle import ReduceScatterOracle
from reports import Reports
from torch import Tensor

from byteps_thc._scheme.decoding.settings import RankCodes
from thc_lab.ranks import run_ranks

CODES = RankCodes(partition_bytes=4096)
#: The error of 5-bit codes, one way, is 0.0025.
NMSE = 0.013
#: In the order in which they are reduced.
GROUPS = {
    "fsdp (root)": ["head"],
    "fsdp first": ["first.weight", "first.bias"],
    "fsdp second": ["second.weight", "second.scale", "second.bias"],
}
BYPASSED = {"first.bias", "second.scale"}


def own_gradients(reports: Reports, step: int = 0) -> list[dict[str, Tensor]]:
    return [gradients(rank, step, all_shapes()) for rank in range(len(reports))]


def assert_close(averages: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Compressed parameters within the error of codes, and not equal; the others but for rounding."""
    for name, average in averages.items():
        if name in BYPASSED:
            torch.testing.assert_close(average, wanted[name])
        else:
            assert 0 < nmse(average, wanted[name]) < NMSE, name


def assert_exact(averages: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert averages.keys() == wanted.keys()
    for name, average in averages.items():
        torch.testing.assert_close(average, wanted[name])


def values(report: object) -> list[Tensor]:
    if isinstance(report, Tensor):
        return [report]
    parts = report.values() if isinstance(report, dict) else report if isinstance(report, list) else []
    return [tensor for part in parts for tensor in values(part)]


@pytest.mark.parametrize(("case", "dtype"), [("three_steps", torch.float32), ("bfloat16", torch.bfloat16)])
def test_averages_are_those_of_one_process(reports: Reports, case: str, dtype: torch.dtype) -> None:
    ranks = len(reports)
    oracles = [ReduceScatterOracle(key, names, BYPASSED & set(names), ranks, CODES) for key, names in GROUPS.items()]
    for step in range(3):
        own = own_gradients(reports, step)
        wanted = {}
        for position, oracle in enumerate(oracles):
            wanted |= oracle.averages(own, len(oracles) * step + position, dtype)
        for report in reports:
            averages = report[case]["averages"][step]
            assert all(torch.equal(averages[name], average.float()) for name, average in wanted.items())
            exact = {name: average for name, average in mean_of(own).items() if name in BYPASSED}
            torch.testing.assert_close({name: averages[name] for name in exact}, exact, rtol=1e-2, atol=1e-2)


def test_all_ranks_have_the_same_parameters_and_averages(reports: Reports) -> None:
    for case in ("three_steps", "float16", "accumulation", "unused", "closing"):
        parts = [report[case] for report in reports]
        assert all(torch.equal(a, b) for part in parts for a, b in zip(values(part), values(parts[0]), strict=True))


def test_float16_gradients(reports: Reports) -> None:
    for step, averages in enumerate(reports[0]["float16"]["averages"]):
        wanted = mean_of(own_gradients(reports, step))
        for name, average in averages.items():
            assert nmse(average, wanted[name]) < NMSE, name


def test_accumulated_gradients_are_compressed_together(reports: Reports) -> None:
    first, second = mean_of(own_gradients(reports, 0)), mean_of(own_gradients(reports, 1))
    assert_close(reports[0]["accumulation"]["averages"], {name: first[name] + second[name] for name in first})
    assert reports[0]["accumulation"]["steps"] == 1


def test_resharding_after_forward_changes_nothing(reports: Reports) -> None:
    never, always, partly = reports[0]["resharding"]["averages"]
    assert_close(never, mean_of(own_gradients(reports)))
    for averages in (always, partly):
        assert all(torch.equal(average, never[name]) for name, average in averages.items() if name not in BYPASSED)


def test_unused_parameters(reports: Reports) -> None:
    wanted, result = mean_of(own_gradients(reports)), reports[0]["unused"]
    assert result["group"].keys() == {"first.weight", "first.bias", "head"}
    assert_close(result["group"], wanted)
    rest = {name: result["part"][name] for name in ("second.scale", "second.bias")}
    assert_exact(rest, {name: wanted[name] for name in rest})
    assert ["some parameters got no gradient" in line for line in result["warnings"]] == [True]
    assert nmse(result["zeros"]["second.bias"], wanted["second.bias"]) < NMSE
    assert not result["zeros"]["second.weight"].any(), "no block has another tensor's error"


def test_frozen_parameters_have_no_part_in_it(reports: Reports) -> None:
    wanted, result = mean_of(own_gradients(reports)), reports[0]["frozen"]
    assert "second.weight" not in result["averages"]
    assert_close(result["averages"], wanted)
    assert "second.weight" in result["thawed"]
    assert_close(result["thawed"], wanted)


def test_gradient_divide_factor(reports: Reports) -> None:
    wanted = {name: len(reports) / 0.5 * average for name, average in mean_of(own_gradients(reports)).items()}
    assert_close(reports[0]["divide_factor"]["scaled"], wanted)


def test_modules_that_are_one_group(reports: Reports) -> None:
    assert_close(reports[0]["modules_in_one_group"]["averages"], mean_of(own_gradients(reports)))


def test_shards_of_another_dimension(reports: Reports) -> None:
    results = [report["other_dimension"] for report in reports]
    own = [gradients(rank, 0, {"0.weight": (40, 96)})["0.weight"] for rank in range(len(results))]
    assert 0 < nmse(results[0]["average"], torch.stack(own).mean(0)) < NMSE
    assert all(result["same"] for result in results)


def test_averages_near_the_largest_number_of_float16_stay_finite(two_ranks: Reports) -> None:
    for report in two_ranks:
        result = report["near_the_largest"]
        pending, awaited = result["averages"]
        for name, average in pending.items():
            assert average.isfinite().all(), name
            assert average.equal(awaited[name])
            assert nmse(average, 65504 * result["signs"][name]) < 0.05


def test_policy_says_which_steps_are_compressed(reports: Reports) -> None:
    wanted, result = mean_of(own_gradients(reports)), reports[0]["policy"]
    warm_up, compressed, stopped = result["averages"]
    assert_exact(warm_up, wanted)
    assert_close(compressed, wanted)
    assert_exact(stopped, wanted)
    assert result["coordinates"] == sum(g.numel() for name, g in wanted.items() if name not in BYPASSED)


def test_excluded_parameters_travel_exactly(reports: Reports) -> None:
    for report in reports:
        result = report["excluded"]
        for step, averages in enumerate(result["averages"]):
            wanted = mean_of(own_gradients(reports, step))
            compressed = {"second.bias", "head"}
            assert_exact(
                {n: g for n, g in averages.items() if n not in compressed},
                {n: g for n, g in wanted.items() if n not in compressed},
            )
            assert all(nmse(averages[name], wanted[name]) > 1e-4 for name in compressed)
        assert result["ratio"] < report["three_steps"]["ratio"]
    (line,) = reports[0]["excluded"]["lines"]
    assert "'nowhere' selects none of the 6 parameters" in line


def test_gradients_that_are_not_finite_reach_the_scaler(reports: Reports) -> None:
    for report in reports:
        result = report["not_finite"]
        assert result["unchanged"]
        assert result["scale"] == result["loss_scale"] == 2.0
        assert result["trained"]


def test_what_cannot_be_compressed_is_refused(reports: Reports) -> None:
    for report in reports:
        refusals = report["refusals"]
        assert "call torch.distributed.fsdp.fully_shard on it first" in refusals["plain"]
        assert "compressed already" in refusals["twice"]
        assert "compress_replicas(model, mesh" in refusals["native"]
        assert "seed is 0 on rank 0, 1 on rank 1" in refusals["settings"]
        assert "head is float64 (1419 elements), first.weight is float64 (" in refusals["float64"]


def test_closing_restores_torchs_own_reduction(reports: Reports) -> None:
    wanted, result = mean_of(own_gradients(reports)), reports[0]["closing"]
    assert_close(result["compressed"], wanted)
    assert_exact(result["exact"], wanted)
    assert all(torch.equal(again, result["compressed"][name]) for name, again in result["again"].items())


def test_activation_checkpoints_change_nothing(reports: Reports) -> None:
    result = reports[0]["checkpointing"]
    for kind in ("plain", "reentrant"):
        assert result[kind]["steps"] == 2
        assert all(
            torch.equal(average, other)
            for average, other in zip(values(result[kind]["averages"]), values(result["none"]["averages"]), strict=True)
        )


def test_gradients_reduced_outside_of_a_backward_pass(reports: Reports) -> None:
    """Every step counts, and the scale of the loss is followed."""
    for report in reports:
        assert (report["pipeline"]["steps"], report["pipeline"]["scale"]) == (2, 2.0)


def test_names_are_the_models(reports: Reports) -> None:
    for found in reports[0]["names"].values():
        assert found == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_ranks_that_reduce_different_gradients_learn_it_at_once(reports: Reports) -> None:
    for report in reports:
        assert "ranks average different gradients. Next here is fsdp second" in report["different_parameters"]
        assert "set_reduce_scatter_unused_params" in report["different_parameters"]


def test_ranks_may_not_run_different_modules_but_use_different_parameters_of_one(reports: Reports) -> None:
    for report in reports:
        assert "ranks average different gradients" in report["different_modules"]
        assert "run the same modules in the same order" in report["different_modules"]
        for name in ("weight", "bias"):
            first, second = (report["branches_of_a_module"][f"branches.{branch}.{name}"] for branch in range(2))
            assert first.any()
            assert second.any()
        # Half of the ranks use each, with a gradient of 4 for the bias.
        assert nmse(report["branches_of_a_module"]["branches.0.bias"], torch.full((48,), 2.0)) < 0.05


def test_statistics(reports: Reports) -> None:
    """Messages to the n - 1 other ranks: 5-bit codes, headers, scales and small parameters; 3 steps."""
    ranks = len(reports)
    result = reports[0]["three_steps"]
    columns = {4: [10 * 50, 10, 700, 2, 512, 33 * 11], 2: [19 * 50, 19, 1400, 3, 1024, 65 * 11]}[ranks]
    codes = 3 * (ranks - 1) * sum(columns) * 5 // 8
    assert codes < result["sent_bytes"] < 1.5 * codes
    assert result["steps"] == 3
    assert result["sizes"] == {name: torch.Size(shape).numel() for name, shape in all_shapes().items()}


@pytest.mark.slow
def test_compiled_models_train_to_the_same_parameters(tmp_path: Path) -> None:
    report, _ = run_ranks(Path(__file__).with_name("compiled_rank.py"), 2, tmp_path / "ranks", timeout_s=200)
    for kind in ("in place", "blocks", "wrapped"):
        for parameter, wanted in zip(report[kind], report["no"], strict=True):
            torch.testing.assert_close(parameter, wanted)
