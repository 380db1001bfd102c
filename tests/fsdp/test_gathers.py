"""FSDP2 with compressed gathers of parameters, on real ranks."""

from pathlib import Path

import pytest
import torch
from device_ranks import INTERPRETER
from known_gradients import nmse
from reports import Reports
from torch import Tensor

from thc_lab.ranks import run_ranks

#: NMSE of weights, by bits.
NMSE = {8: 1e-4, 4: 0.015}
#: Kinds of gathers that compress the same parameters.
KINDS = ("default", "4 bits", "kept", "partly", "bfloat16", "hybrid", "replicas", "prefetch", "codes", "recomputed")
#: Excluded or small, in gather_cases.py's blocks; up.weight is compressed.
EXACT = ("up.bias", "norm.weight", "norm.bias", "down.weight", "down.bias")
Weights = dict[str, Tensor]


def equal(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(weight, other[name]) for name, weight in one.items())


def of_block(exact: Weights, block: int) -> Weights:
    return {name.removeprefix(f"{block}."): weight for name, weight in exact.items() if name.startswith(f"{block}.")}


@pytest.mark.parametrize("kind", [*KINDS])
def test_all_ranks_compute_with_the_same_weights_in_forward_and_backward(reports: Reports, kind: str) -> None:
    for report in reports:
        result, same = report["weights"][kind], reports[0]["weights"][kind]["seen"]
        assert result["kept"], "the optimizer's shards stay exact"
        for block, (forward, *later) in enumerate(result["seen"]):
            assert later
            assert all(equal(forward, weights) for weights in later)
            assert equal(forward, same[block][0])
            exact, bits = of_block(result["exact"], block), 4 if kind == "4 bits" else 8
            assert all(torch.equal(forward[name], exact[name].to(forward[name].dtype)) for name in EXACT)
            assert NMSE[bits] / 16 < nmse(forward["up.weight"], exact["up.weight"]) < NMSE[bits]


def test_groups_of_several_dtypes_travel_exactly(reports: Reports) -> None:
    for report in reports:
        exact, (first, second) = (report["weights"]["frozen"][key] for key in ("exact", "seen"))
        assert all(equal(weights, of_block(exact, 0)) for weights in first)
        assert nmse(second[0]["up.weight"], exact["1.up.weight"]) > 0


def test_sent_bytes(reports: Reports) -> None:
    """A gather for forward and one for backward, of two blocks, to the n - 1 other ranks."""
    ranks, by_kind = len(reports), reports[0]["weights"]
    up, down, small = -(-101 // ranks) * 24, 24 // ranks * 101, 3 * -(-101 // ranks) + 24 // ranks
    for kind, gathers, bits in (("default", 4, 8), ("kept", 2, 8), ("codes", 2, 8), ("4 bits", 4, 4)):
        wanted = gathers * (ranks - 1) * (up * bits / 8 + 4 * (down + small))
        assert wanted < by_kind[kind]["sent_bytes"] < 1.1 * wanted, kind


def test_training_with_both_directions_compressed(reports: Reports) -> None:
    """One handle for both, whose close() restores torch's gather."""
    for report in reports:
        result = report["training"]
        plain, compressed = result["losses"]["plain"], result["losses"]["compressed"]
        assert plain != compressed
        assert compressed[-1] == pytest.approx(plain[-1], rel=0.05)
        assert compressed[-1] < 0.8 * compressed[0]
        assert all(equal(weights, of_block(result["exact"], block)) for block, [weights] in enumerate(result["seen"]))
        assert min(result["ratios"]) > 1


def test_evaluation_has_the_weights_of_training_unless_exact(reports: Reports) -> None:
    for report in reports:
        for block, (trained, _, evaluated, exactly, *again, _, late) in enumerate(report["evaluation"]["seen"]):
            exact = of_block(report["evaluation"]["exact"], block)
            assert nmse(trained["up.weight"], exact["up.weight"]) < NMSE[8], "THC_CONFIG is of gradients"
            assert all(equal(weights, trained) for weights in (evaluated, *again))
            assert equal(exactly, exact)
            assert equal(late, {name: 2 * weight for name, weight in trained.items()}), "codes of an earlier pass"


def test_checkpoints_have_exact_parameters(reports: Reports) -> None:
    for report in reports:
        result = report["checkpoints"]
        assert equal(*result["exact"])
        assert equal(*result["gradients"])
        for block, seen in enumerate(zip(*result["seen"], strict=True)):
            assert equal(*seen)
            assert nmse(seen[0]["up.weight"], result["exact"][0][f"{block}.up.weight"]) > 0


def test_refusals(reports: Reports) -> None:
    for report in reports:
        refusals = report["gather_refusals"]
        assert "parameters are on cuda:0, where gathers need NCCL" in refusals["device"]
        assert "compressed already: close()" in refusals["twice"]
        assert "ranks have different settings: parameter_bits is 8 on rank 0, 6 on rank 1" in refusals["bits"]
        assert refusals["both"] == refusals["bits"]
        different = "engine is 'reduce-scatter' on rank 0, 'all-gather' on rank 1"
        assert refusals["one"].startswith(f"ConfigurationError: ranks have different settings: {different}")
        assert refusals["one"].endswith(": call the same function with the same arguments on all ranks")
        for unused in ("down_bits", "partition_bytes"):
            assert f"{unused} has no effect in this call: omit it" in refusals[unused]


def test_ranks_that_gather_different_modules_are_told_which(reports: Reports) -> None:
    who = ", ".join(f"{str(rank % 2)!r} on rank {rank}" for rank in range(len(reports)))
    for report in reports:
        errors = report["other_order"]
        assert len(errors) == 2
        for error in errors:
            assert error.startswith(f"ranks gather different modules: {who}. All ranks must run the same modules in ")


@pytest.mark.slow
def test_a_device_trains_with_the_hosts_bits(tmp_path: Path) -> None:
    """Weights of all passes, and parameters after two steps; in the second step, backward has forward's codes."""
    program = Path(__file__).with_name("device_rank.py")
    for report in run_ranks(program, 2, tmp_path / "ranks", before_import=INTERPRETER, timeout_s=300):
        host, device = report["host"], report["device"]
        assert (host["codes"], device["codes"]) == ("HostCodes", "GatherBatch")
        assert equal(host["full"], device["full"])
        for seen, wanted in zip(device["seen"], host["seen"], strict=True):
            assert len(seen) == len(wanted) == 4
            assert all(equal(*pair) for pair in zip(seen, wanted, strict=True))
