"""What ThcConfig comes to among ranks that decode each other's codes."""

from __future__ import annotations

import pytest

from byteps_thc._scheme.config import ThcConfig
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc._scheme.rank_settings import _OF_SERVERS, RankSettings

OTHERS = {"bits": 5, "down_bits": 6, "seed": 1, "partition_bytes": 1 << 16}
OF_SERVERS = {
    "granularity": 30, "p": 0.1, "value_bits": 8, "rotation_block": 4096, "error_feedback": False,
    "rounding": "independent", "codes_per_packet": 256,
}  # fmt: skip


@pytest.mark.parametrize("setting", _OF_SERVERS)
def test_settings_of_servers_are_refused_by_name(setting: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{setting}: only for servers"):
        RankSettings.of(ThcConfig(**{setting: OF_SERVERS[setting]}), 4)


def test_others_has_all_settings_of_ranks() -> None:
    assert OTHERS.keys() == ThcConfig.model_fields.keys() - {*_OF_SERVERS}


@pytest.mark.parametrize("setting", OTHERS)
def test_ranks_with_another_setting_average_something_else(setting: str) -> None:
    """Fingerprints have the identity in them, so that no rank decodes codes of other settings."""
    other = ThcConfig(**{setting: OTHERS[setting]})
    assert RankSettings.of(other, 4).identity != RankSettings.of(ThcConfig(), 4).identity


def test_bits_are_those_of_both_ways() -> None:
    assert RankSettings.of(ThcConfig(), 4).chosen == {"bits": 4, "down_bits": 4}
    assert RankSettings.of(ThcConfig(bits=5), 4).down_bits == 5
    assert RankSettings.of(ThcConfig(bits=4, down_bits=7), 4).down_bits == 7
    assert RankSettings.of(ThcConfig(bits=4), 4, sharded=True).down_bits is None
