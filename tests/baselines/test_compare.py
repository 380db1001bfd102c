"""All schemes on one gradient."""

from __future__ import annotations

import math

import pytest
import torch

from byteps_thc import ThcConfig
from byteps_thc.baselines import (
    Bf16,
    Comparison,
    Dgc,
    Fp16,
    NoCompression,
    Qsgd,
    SignSgd,
    TernGrad,
    TopK,
    compare,
)
from byteps_thc.errors import InputError

WORKERS, SIZE = 4, 1 << 16
SCHEMES = {
    "fp32": NoCompression(),
    "fp16": Fp16(),
    "bf16": Bf16(),
    "THC": ThcConfig(),
    "THC 4+8": ThcConfig(bits=4, down_bits=8),
    "TopK 10%": TopK(ratio=0.1),
    "TopK 1%": TopK(ratio=0.01),
    "DGC 10%": Dgc(ratio=0.1),
    "TernGrad": TernGrad(clip=None),
    "QSGD 4": Qsgd(bits=4),
    "SignSGD": SignSgd(),
}


@pytest.fixture(scope="module")
def rows() -> dict[str, Comparison]:
    """Gradients of workers with a common part, normally distributed with heavier tails (log-normal scales)."""
    generator = torch.Generator().manual_seed(0)
    scales = torch.randn(SIZE, generator=generator).exp()
    common, *own = torch.randn(1 + WORKERS, SIZE, generator=generator)
    return {row.scheme: row for row in compare([(common + noise) * scales for noise in own], SCHEMES)}


def test_every_scheme_has_a_row(rows: dict[str, Comparison]) -> None:
    assert list(rows) == list(SCHEMES)
    assert "THC" in str(rows["THC"])


def test_bits_per_coordinate_that_a_worker_sends_up(rows: dict[str, Comparison]) -> None:
    expected = {
        "fp32": 32,
        "fp16": 16,
        "bf16": 16,
        "THC": 5 + 32 / 1024 + 4 * 128 / SIZE,
        "THC 4+8": 4 + 32 / 1024 + 4 * 128 / SIZE,
        "TopK 10%": 6.4,
        "TopK 1%": 0.64,
        "DGC 10%": 6.4,
        "TernGrad": 2,
        "QSGD 4": 4 + 32 / 512,
        "SignSGD": 1,
    }
    assert {name: row.up_bits for name, row in rows.items()} == pytest.approx(expected, rel=1e-3)


def test_bits_per_coordinate_that_a_rank_sends(rows: dict[str, Comparison]) -> None:
    """Rings and THC send (n - 1) / n of the volume; an all-gather n - 1 times the payload."""
    expected = {
        "fp32": 2 * 32 * 3 / 4,
        "bf16": 2 * 16 * 3 / 4,
        "THC": 2 * (5 + 32 / 1024 + 4 * 128 / SIZE) * 3 / 4,  # with scales and headers
        "THC 4+8": (4 + 8 + 2 * (32 / 1024 + 4 * 128 / SIZE)) * 3 / 4,
        "TopK 1%": 3 * 0.64,
        "TernGrad": 3 * 2,
        "QSGD 4": 3 * (4 + 32 / 512),
        "SignSGD": 3 * 1,
    }
    assert {name: rows[name].sent_bits for name in expected} == pytest.approx(expected, rel=1e-3)


def test_errors_are_in_the_papers_order(rows: dict[str, Comparison]) -> None:
    """Section 2 and figure 2: TernGrad far above TopK 10%, and THC far below both."""
    order = ["fp32", "fp16", "bf16", "THC", "THC 4+8", "TopK 10%", "TernGrad"]
    nmse = [rows[name].nmse for name in order]
    assert nmse == sorted(nmse)
    assert rows["TernGrad"].nmse > 5 * rows["TopK 10%"].nmse
    assert rows["TopK 10%"].nmse > 5 * rows["THC"].nmse
    assert rows["TopK 10%"].nmse < rows["TopK 1%"].nmse < 1
    assert rows["DGC 10%"].nmse == rows["TopK 10%"].nmse  # the same in a first step
    assert all(math.isfinite(row.nmse) for row in rows.values())


def test_what_cannot_be_compared_is_refused() -> None:
    gradient = torch.randn(2048)
    with pytest.raises(InputError, match="same size"):
        compare([gradient, gradient[:-1]], SCHEMES)
