"""Unknown settings and variables: the error or warning says which ones exist, wherever they are given."""

from collections.abc import Callable

import pytest

from byteps_thc import CompressionPolicy, NetworkConfig, ServerCodes, Session, ThcReducer, Timeouts
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.settings import warn_once
from byteps_thc._net.session import DpdkConfig, UdpConfig
from byteps_thc._scheme.decoding.settings import RankCodes
from byteps_thc.torch import Compression

GIVEN: dict[str, Callable[[str], object]] = {
    "ServerCodes": lambda name: ServerCodes(**{name: 1}),
    "RankCodes": lambda name: RankCodes.from_environment(**{name: 1}),
    "CompressionPolicy": lambda name: CompressionPolicy(**{name: 1}),
    "ThcCompression": lambda name: Compression.thc(servers=["10.0.0.1"], **{name: 1}),
    "NetworkConfig": lambda name: NetworkConfig(["10.0.0.1"], **{name: 1}),
    "Session": lambda name: Session(["10.0.0.1"], job=1, worker=0, workers=1, codes=ServerCodes(), **{name: 1}),
    "Timeouts": lambda name: Timeouts(**{name: 1}),
    "UdpConfig": lambda name: UdpConfig(**{name: 1}),
    "DpdkConfig": lambda name: DpdkConfig("10.0.0.5", **{name: 1}),
}


@pytest.mark.parametrize("where", GIVEN)
def test_an_unknown_setting_is_refused_by_name(where: str) -> None:
    with pytest.raises(ConfigurationError, match=f"warp: {where} has no such setting, only "):
        GIVEN[where]("warp")


def test_a_setting_that_is_unknown_says_what_there_is() -> None:
    with pytest.raises(ConfigurationError, match=r"failover: Session has no such setting, only quorum, .*, codes$"):
        GIVEN["Session"]("failover")
    with pytest.raises(ConfigurationError, match=r"^network: pass the NetworkConfig as the first argument$"):
        ThcReducer(network=3, worker=0, workers=1)  # type: ignore[call-arg]


def test_an_unknown_variable_is_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    for name in ("THC_POLICYY", "THC_BITS", "THC_SLOTS", "THC_TESTBED_RESULTS", "THC_PS", "THCX"):
        monkeypatch.setenv(name, "3")
    for _ in range(2):
        ServerCodes.from_environment()
    monkeypatch.setenv("THC_OF_RANK_1", "3")
    monkeypatch.setenv("RANK", "1")
    ServerCodes.from_environment()
    nothing = "there is no such variable, and nothing reads it"
    written = "THC_CONFIG=bits=4,seed=7 and THC_POLICY=warmup_steps=100,exclude=lm_head"
    assert sorted(caplog.messages) == [
        f"THC_BITS: {nothing}: settings go into {written}",
        f"THC_POLICYY: {nothing}: did you mean THC_POLICY?",
        f"THC_SLOTS: {nothing}: settings go into {written}",
    ]
