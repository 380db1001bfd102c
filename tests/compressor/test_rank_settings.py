"""RankCodes, for numbers of ranks that decode each other's codes."""

import logging

import pytest

from byteps_thc import NetworkConfig, ServerCodes
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._engine.door import choose_scheme
from byteps_thc._scheme.decoding.settings import RankCodes

OTHERS = {"bits": 5, "down_bits": 6, "seed": 1, "partition_bytes": 1 << 16}


@pytest.mark.parametrize("setting", RankCodes.model_fields)
def test_ranks_with_another_setting_average_something_else(setting: str) -> None:
    """Fingerprints have the identity in them, so that no rank decodes codes of other settings."""
    other = RankCodes(**{setting: OTHERS[setting]})
    assert other.resolve(4).identity != RankCodes().resolve(4).identity


def test_bits_are_those_of_both_ways() -> None:
    assert RankCodes().resolve(4).settings | {"bits": 4, "down_bits": 4} == RankCodes().resolve(4).settings
    assert RankCodes(bits=5).resolve(4).down_bits == 5
    assert RankCodes(bits=4, down_bits=7).resolve(4).down_bits == 7
    assert RankCodes(bits=4).resolve(4, sharded=True).down_bits is None
    with pytest.raises(ConfigurationError, match=r"ranks must be in 1 \.\. 1024, not 1025"):
        RankCodes().resolve(1025)


def test_keywords_beside_a_network_are_refused() -> None:
    network = NetworkConfig(["10.0.0.1"], codes=ServerCodes(bits=3))
    assert choose_scheme(network, {}) is network
    with pytest.raises(ConfigurationError, match=r"^bits, seed: .* NetworkConfig\(codes=ServerCodes\(bits=\.\.\.\)\)"):
        choose_scheme(network, {"bits": 4, "seed": 1})
    with pytest.raises(ConfigurationError, match=r"^down_bits: must be 1"):
        choose_scheme(network, {"down_bits": 9})  # type: ignore[typeddict-item]


def test_keywords_win_and_one_line_says_what_of_the_variable_was_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("THC_CONFIG", "bits=2,seed=7,down_bits=6")
    with caplog.at_level(logging.WARNING, logger="byteps_thc"):
        assert choose_scheme(None, {"bits": 3, "down_bits": 6}) == RankCodes(bits=3, seed=7, down_bits=6)
    assert caplog.messages == [
        "THC_CONFIG: ignored: bits=2; the program sets bits=3, down_bits=6, which overrides the variable"
    ]
    with pytest.raises(ConfigurationError, match=r"^seed: ") as raised:
        RankCodes.from_environment(seed=-1)
    assert "THC_CONFIG" not in str(raised.value)


def test_the_variable_has_settings_of_the_scheme_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THC_CONFIG", "p=1/32")
    assert NetworkConfig(["10.0.0.1"]).codes == ServerCodes(p=1 / 32)
    with pytest.raises(ConfigurationError, match=r"^THC_CONFIG: p: there is no such .* codes=ServerCodes\(p=\.\.\.\);"):
        RankCodes.from_environment()
    monkeypatch.setenv("THC_CONFIG", "down_bits=6")
    with pytest.raises(ConfigurationError, match=r"^THC_CONFIG: down_bits: .* compress\(down_bits=\.\.\.\)$"):
        NetworkConfig(["10.0.0.1"])
