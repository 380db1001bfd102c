"""Which P4 programs a test runs on."""

from __future__ import annotations

import pytest

from thc_lab.demo_switch.software_switch import SwitchChoice

#: For tests that are not about a program's sums: one is enough for every run of the tests.
one_program_or_slow = pytest.mark.parametrize(
    "choice",
    [
        SwitchChoice("v1model", "model"),
        pytest.param(SwitchChoice("tna", "model"), marks=pytest.mark.slow),
        pytest.param(SwitchChoice("v1model", "bmv2"), marks=pytest.mark.slow),
    ],
    indirect=True,
    ids=lambda choice: f"{choice.program}-{choice.target}",
)
