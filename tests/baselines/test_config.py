"""Wrong settings are named, one line each."""

from __future__ import annotations

import pytest

from byteps_thc.baselines import Bf16, Dgc, Qsgd, SignSgd, TernGrad, TopK
from byteps_thc.errors import ConfigurationError


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopK(ratio=0), "ratio: input should be greater than 0 (given: 0)"),
        (lambda: TopK(ratio=1.5), "ratio: input should be less than or equal to 1 (given: 1.5)"),
        (lambda: TopK(ration=0.1), "ration: TopK has no such setting, did you mean ratio? (given: 0.1)"),
        (lambda: Dgc(momentum=1), "momentum: input should be less than 1 (given: 1)"),
        (lambda: Dgc(clip_norm=0), "clip_norm: input should be greater than 0 (given: 0)"),
        (lambda: Dgc(warmup_ratios=(0.5, 2.0)), "warmup_ratios: input should be less than or equal to 1 (given: 2.0)"),
        (lambda: TernGrad(clip=-1), "clip: input should be greater than 0 (given: -1)"),
        (lambda: Qsgd(bits=3), "bits: input should be 2, 4 or 8 (given: 3)"),
        (lambda: Qsgd(norm="l1"), "norm: input should be 'max' or 'l2' (given: 'l1')"),
        (lambda: SignSgd(variant="median"), "variant: input should be 'scaled' or 'majority' (given: 'median')"),
        (lambda: Bf16(bits=4), "bits: Bf16 has no such setting (given: 4)"),
    ],
)
def test_the_message_names_the_setting(make, message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        make()
    assert str(error.value) == message


def test_two_wrong_settings_are_both_named() -> None:
    with pytest.raises(ConfigurationError, match=r"ratio: .*; momentum: "):
        Dgc(ratio=2, momentum=2)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        TopK().ratio = 0.5  # type: ignore[misc]
