"""ThcReducer on real gloo ranks."""

from pathlib import Path

import pytest
import torch
from reports import Reports, reports_of

RANKS = 3


reports = reports_of(Path(__file__).with_name("reducer_rank.py"), RANKS, server=True, timeout_s=200)


def of(reports: Reports, scenario: str) -> Reports:
    return [report[scenario] for report in reports]


def test_a_start_takes_four_exchanges(reports: Reports) -> None:
    """Nodes, settings, addresses of all connections, and that all are connected."""
    assert of(reports, "exchanges") == [{"ranks": 4, "servers": 4}] * RANKS


@pytest.mark.parametrize(
    "scenario",
    ["averages", "asynchronous", "mismatches", "refusals", "policies", "excluded", "grad_scaler", "resumed", "servers"],
)
def test_averages_are_the_same_bits_on_all_ranks(reports: Reports, scenario: str) -> None:
    first, *others = (report["averages"] for report in of(reports, scenario))
    for other in others:
        assert first.keys() == other.keys()
        for name, tensor in first.items():
            assert tensor.isfinite().all()
            assert torch.equal(tensor, other[name]), name


def test_tensors_of_every_kind_are_averaged_in_place(reports: Reports) -> None:
    for report in of(reports, "averages"):
        for name, errors in report["errors"].items():
            # Small ones travel exactly; the others have the error of 4-bit codes.
            exact = name in ("small", "empty", "scalar")
            assert max(errors) < (1e-10 if exact else 0.025), name
            assert min(errors) > 0 or exact, name
        assert report["untouched"]  # elements between the columns of a tensor
        assert max(report["lost"].values()) < 0.03  # of a variance of 1, in three steps
        assert report["steps"] == 3
        assert report["ratio"] > 4
        assert report["sizes"]["empty"] == 0
        assert report["sizes"]["parameter"] == 3000


def test_averages_are_the_engines(reports: Reports) -> None:
    for report in of(reports, "equals_the_engine"):
        assert report["equal"] == [True] * 4


def test_calls_in_flight(reports: Reports) -> None:
    for rank, report in enumerate(of(reports, "asynchronous")):
        assert report["value"]
        assert report["thread"] in ("thc-finish", "MainThread")  # the latter when it was over by then
        assert report["waited"] == [True] * 4
        assert report["completed"] == [True] * 2
        assert max(report["errors"]) < 0.025
        if rank:
            assert report["late"] == "DeadlineError: the average did not arrive within 0.05 s; it is still under way"
            assert report["early"] == [False, False]
            assert report["again"] == "InputError: 'a' is in flight: wait() for the call that has it first"
            assert report["state"].startswith("InputError: state_dict: 2 calls are in flight")


def test_ranks_that_pass_different_tensors_get_an_error(reports: Reports) -> None:
    for report in of(reports, "mismatches"):
        order, size, number, *works = report["errors"]
        a, b = ("'a' (2000 elements, torch.float32)", "'b' (2000 elements, torch.float32)")
        assert order == (
            "InputError: ranks average different tensors. Next here is a call of all_reduce(); what differs first is "
            f"{a} on rank 0, {b} on rank 1, {a} on rank 2. "
            "All ranks must pass the same names, sizes and dtypes in the same order"
        )
        assert "'c' (3001 elements, torch.float32) on rank 1" in size
        assert "what differs first is 'f' (2 elements, torch.float32) on rank 0, none on rank 1" in number
        assert all("InputError: ranks average different tensors. Next here is" in text for text in works)
        assert all(report["unchanged"])
        assert report["steps"] == 3  # a refused call is no step
        assert report["sizes"] == {"c": 3000, "d": 10}
        assert report["error"] < 0.025


def test_what_cannot_be_averaged_is_refused(reports: Reports) -> None:
    for report in of(reports, "refusals"):
        texts = report["texts"]
        assert texts["size"].startswith("InputError: 'known' has 2001 elements of torch.float32 on cpu, and had 2000")
        assert "has 2000 elements of torch.float16 on cpu, and had 2000 elements of torch.float32" in texts["dtype"]
        assert texts["double"].startswith("InputError: 'x' is torch.float64 on cpu: pass float32, float16 or bfloat16")
        assert texts["sparse"] == "InputError: 'x' is sparse: pass to_dense()"
        assert texts["distributed"] == "InputError: 'x' is a DTensor: pass to_local()"
        assert texts["none"].startswith(
            "InputError: 'x' is a NoneType, not a tensor: omit parameters without a gradient"
        )
        assert texts["list"] == "InputError: 'x' is a list, not a tensor"
        assert "on meta" in texts["meta"]
        assert "elements of 'x' share memory" in texts["expanded"]
        assert texts["alias"] == "InputError: 'x' and 'y' share memory: pass it under one name, or copies"
        assert texts["worker"].startswith(
            "ConfigurationError: worker and workers are for training without a process group: omit them"
        )
        assert "not a list: ThcReducer(torch.distributed.new_group(ranks))" in texts["where"]
        assert texts["closed"].startswith("TransportError: the reducer has ended: the reducer was closed")


def test_closing_fails_what_is_in_flight(reports: Reports) -> None:
    report = of(reports, "closed_in_flight")[0]
    assert report["error"] == "TransportError: the reducer was closed"


def test_policy_and_log(reports: Reports) -> None:
    everyone = of(reports, "policies")
    for report in everyone:
        for step, (large, small) in enumerate(report["errors"]):
            assert small < 1e-6
            assert (large < 1e-6) == (step < 2)  # of warm-up
    nodes, *steps = everyone[0]["lines"]
    assert nodes == f"averages are compressed over {len(everyone)} ranks on 1 node, in one level"
    assert [line.split(":")[0] for line in steps] == ["step 2", "step 4"]
    assert everyone[1]["lines"] == []


def test_excluded_tensors_travel_exactly(reports: Reports) -> None:
    for report in of(reports, "excluded"):
        errors = report["errors"]
        assert errors.pop("embed.weight") > 1e-3
        assert max(errors.values()) < 1e-6
        assert "exclude need a process group" in report["servers"]
    (line,) = of(reports, "excluded")[0]["lines"]
    assert "'nowhere' selects none of the 4 parameters" in line


def test_all_ranks_skip_a_step_of_the_scaler(reports: Reports) -> None:
    for rank, report in enumerate(of(reports, "grad_scaler")):
        assert report["finite"] == [True, False, True]
        assert report["scales"] == [1024.0, 512.0]
        assert not rank or report["in flight"].startswith(
            "InputError: all_reduce with a grad_scaler: 1 calls are in flight"
        )


def test_state_goes_on_bit_for_bit(reports: Reports) -> None:
    for report in of(reports, "resumed"):
        assert report["by hand"]
        assert report["checkpoint"]
        assert report["by hand, known"] == report["checkpoint, known"] == ""


def test_ranks_of_a_process_group(reports: Reports) -> None:
    first, alone, third = of(reports, "subgroups")
    assert [report["workers"] for report in (first, alone, third)] == [2, 1, 2]
    assert torch.equal(first["tensor"], third["tensor"])
    average = (first["before"] + third["before"]) / 2
    assert (first["tensor"] - average).square().sum() < 0.025 * average.square().sum()
    assert torch.equal(alone["tensor"], alone["before"])


def test_servers_with_a_process_group(reports: Reports) -> None:
    for report in of(reports, "servers"):
        for compressed, exact in report["errors"]:
            assert 1e-6 < compressed < 0.1
            assert exact < 1e-10
        assert report["mismatch"].startswith("InputError: ranks average different tensors.")
        assert "what differs first is 'a'" in report["mismatch"]
