"""A rank that differs, with each front end: an error on all ranks, in the same step, and no parameter has changed.

And gradients of zeros, with NaN and with Inf: averages are the same on all ranks, and no other parameter's are spoiled.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from device_ranks import INTERPRETER
from reports import Reports

from thc_lab.ranks import run_ranks

HERE = Path(__file__).parent
FRONT_ENDS = ("DDP", "two levels", "FSDP2", "HSDP", "ThcReducer")
DIFFERENCES = (
    *("shape", "turned", "order", "name", "dtype", "round", "loss scale", "loss scale, later"),
    *("no loss scale", "bits", "policy", "one is small", "one is in warm-up", "names in warm-up"),
    *("names of small ones", "scale of small ones", "dtype of small ones", "shapes of small ones"),
)
#: Differences that torch finds, or that no front end promises to find: only numbers of elements are compared where
#: gradients are flat, and FSDP2 gathers parameters in forward, where gloo ends the process.
LEFT_OUT = {
    *(("DDP", "turned"), ("two levels", "turned"), ("ThcReducer", "turned")),
    *(("FSDP2", "shape"), ("FSDP2", "shapes of small ones")),
}
#: Settings, and HSDP's parameters, are compared before the first step.
AT_THE_START = {
    *((front_end, name) for front_end in FRONT_ENDS for name in ("bits", "policy")),
    *(("HSDP", name) for name in ("shape", "turned", "order", "name", "one is small")),
    *(("HSDP", name) for name in ("names in warm-up", "names of small ones", "shapes of small ones")),
}


def expected(front_end: str) -> Iterator[str]:
    yield "none"
    yield from (name for name in DIFFERENCES if (front_end, name) not in LEFT_OUT)


def run(front_end: str, kernels: str, ranks: int, odd: list[int], directory: Path) -> Reports:
    path = os.pathsep.join([str(HERE), str(HERE.parent / "lib")])
    return run_ranks(
        HERE / "agreement_rank.py",
        ranks,
        directory,
        settings={"kernels": kernels, "front_end": front_end, "differences": [*expected(front_end)], "odd": odd},
        environment={"PYTHONPATH": path},
        before_import=INTERPRETER if kernels == "device" else None,
        timeout_s=600 if kernels == "device" else 180,
    )


@pytest.mark.timeout(660)
@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize(
    ("kernels", "ranks", "odd"),
    [
        ("host", 2, [1]),
        pytest.param("host", 4, [2, 3], marks=pytest.mark.slow),  # a node, or a replica
        pytest.param("device", 2, [1], marks=pytest.mark.slow),
    ],
)
def test_all_ranks_get_the_error(front_end: str, kernels: str, ranks: int, odd: list[int], tmp_path: Path) -> None:
    reports = run(front_end, kernels, ranks, odd, tmp_path)
    for name in expected(front_end):
        for rank, report in enumerate(reports):
            found = report["differences"][name]
            error, who = found["error"], (name, rank, found)
            if name == "none":
                assert (error, found["changed"]) == ("", True), who
                continue
            assert not found["changed"], who
            if (front_end, name) in AT_THE_START:
                assert re.match("ConfigurationError: ranks have different (settings|parameters): ", error), who
                assert any(f" on rank {number}" in error for number in odd), who
            else:
                require_input_error(error, who)
                if (front_end, ranks) == ("HSDP", 4) and rank > 0:  # worker 0 or 1 of its group
                    assert f"rank {rank}" in error, who
    check_values([report["values"] for report in reports])


def require_input_error(error: str, who: object) -> None:
    """The error names the mistake, the allowed values, and a remedy."""
    assert "InputError: " in error, who
    assert re.search("(ranks|workers) average different (gradients|tensors)", error), who
    assert re.search("what differs first is .* on rank|another one ", error), who
    assert re.search("(be|run|pass) the same", error), who
    assert re.search("end all of them, and start again|[Aa]ll ranks must (run|pass)", error), who


def check_values(reports: Reports) -> None:
    for step, averages in reports[0].items():
        a, b = averages["a"], averages["b"]
        assert all(same(a, report[step]["a"]) and same(b, report[step]["b"]) for report in reports), step
        assert a.isfinite().all(), step
        assert bool(a.any()) == (step not in ("zeros", "zeros beside nan")), step
        spoiled = step in ("nan", "inf", "zeros beside nan")
        assert not b.isinf().any(), step
        assert b.isnan().any() == spoiled, step
        assert not b.isnan().all(), step  # one rotation block of it


def same(mine: torch.Tensor, others: torch.Tensor) -> bool:
    """The same bits, but for the payloads of NaN."""
    return torch.equal(mine.nan_to_num(nan=9e9), others.nan_to_num(nan=9e9))
