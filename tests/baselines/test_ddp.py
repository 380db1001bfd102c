"""Every scheme trains a model under DDP with the same hook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from baseline_schemes import SCHEMES as BASELINES
from baseline_schemes import TRAINING
from ranks import run_ranks

RANKS, STEPS, POISONED_STEP = 2, 20, 7
SCHEMES = BASELINES | {"THC": ("THC", {}, TRAINING)}
RESTORED = ["Dgc"]
Reports = list[dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """What each rank reported of each scheme."""
    settings = {
        "schemes": SCHEMES,
        "steps": STEPS,
        "poisoned_step": POISONED_STEP,
        "training": TRAINING,
        "restored": RESTORED,
    }
    program = Path(__file__).with_name("ddp_rank.py")
    return run_ranks(program, RANKS, tmp_path_factory.mktemp("ranks") / "ddp", settings=settings, timeout_s=200)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_loss_falls(reports: Reports, scheme: str) -> None:
    """To half at least; without compression it falls to a tenth."""
    for report in reports:
        losses = report[scheme]["losses"]
        assert sum(losses[-3:]) < sum(losses[:3]) / 2
        assert report[scheme]["steps"] == STEPS


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ranks_have_the_same_parameters(reports: Reports, scheme: str) -> None:
    first, second = (report[scheme]["parameters"] for report in reports)
    assert first.equal(second)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_nan_costs_all_ranks_one_step(reports: Reports, scheme: str) -> None:
    for report in reports:
        assert report[scheme]["skipped"] == [POISONED_STEP]


@pytest.mark.parametrize(("scheme", "torchs"), [("NoCompression", "fp32"), ("Fp16", "fp16"), ("Bf16", "bf16")])
def test_dense_schemes_are_torchs_hooks_to_the_bit(reports: Reports, scheme: str, torchs: str) -> None:
    for report in reports:
        assert report[scheme]["parameters"].equal(report[torchs]["parameters"])


@pytest.mark.parametrize(
    ("scheme", "least", "most"),
    [
        ("NoCompression", 1, 1),
        ("Fp16", 2, 2),
        ("Bf16", 2, 2),
        ("TopK", 4, 5),  # 8 bytes for a tenth of the 4-byte coordinates; 72 of 2632 coordinates in fp32
        ("Qsgd", 6, 8),
        ("SignSgd", 14, 32),
    ],
)
def test_compression_ratios(reports: Reports, scheme: str, least: float, most: float) -> None:
    assert least <= reports[0][scheme]["ratio"] <= most


@pytest.mark.parametrize("scheme", RESTORED)
def test_a_state_is_restored(reports: Reports, scheme: str) -> None:
    for rank, report in enumerate(reports):
        saved, restored = report[scheme]["saved"], report[scheme]["restored"]
        stores = {"residuals", "momenta"} & saved.keys()
        plain = saved.keys() - stores
        assert saved["worker"] == rank
        assert saved["step"] == STEPS
        assert {key: saved[key] for key in plain} == {key: restored[key] for key in plain}
        for store in stores:
            assert saved[store].keys() == restored[store].keys()
            assert all(tensor.equal(restored[store][name]) for name, tensor in saved[store].items())


def test_dgc_keeps_large_parameters_residuals_and_all_momenta(reports: Reports) -> None:
    saved = reports[0]["Dgc"]["saved"]
    assert sorted(tensor.numel() for tensor in saved["residuals"].values()) == [8 * 64, 32 * 64]
    assert sorted(tensor.numel() for tensor in saved["momenta"].values()) == [8, 64, 8 * 64, 32 * 64]
