"""Settings and variables of earlier versions: one error says what to write instead, wherever they are given."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import byteps_thc
from byteps_thc import CompressionPolicy, NetworkConfig, Session, ThcConfig, ThcReducer, Timeouts
from byteps_thc._engine.door import choose_config
from byteps_thc._net.session import DpdkConfig, UdpConfig
from byteps_thc._scheme.environment import NAMES, variable
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc._scheme.gone import COMMANDS, SETTINGS, VARIABLES, instead_of
from byteps_thc._scheme.gone import NAMES as GONE
from byteps_thc._scheme.settings import warn_once
from byteps_thc.torch import Compression

GIVEN: dict[str, Callable[[str], object]] = {
    "ThcConfig": lambda name: ThcConfig(**{name: 1}),
    "CompressionPolicy": lambda name: CompressionPolicy(**{name: 1}),
    "ThcCompression": lambda name: Compression.thc(servers=["10.0.0.1"], **{name: 1}),
    "NetworkConfig": lambda name: NetworkConfig(["10.0.0.1"], **{name: 1}),
    "Session": lambda name: Session(["10.0.0.1"], job=1, worker=0, workers=1, config=ThcConfig(), **{name: 1}),
    "Timeouts": lambda name: Timeouts(**{name: 1}),
    "UdpConfig": lambda name: UdpConfig(**{name: 1}),
    "DpdkConfig": lambda name: DpdkConfig("10.0.0.5", **{name: 1}),
}


def test_the_page_that_errors_name_lists_all_that_is_gone() -> None:
    page = (Path(__file__).parents[2] / "docs/migration.md").read_text(encoding="utf-8")
    listed = "\n".join(re.findall(r"^\|([^|]+)\|", page.partition("## From an earlier")[2], flags=re.MULTILINE))
    missing = [name for name in SETTINGS if not re.search(rf"\b{name}=", listed)]
    missing += [name for name in (*VARIABLES, *(f"thc {command}" for command in COMMANDS)) if name not in listed]
    missing += [name for name in GONE if not re.search(rf"[`.]{name}[`.]", listed)]
    assert not missing


@pytest.mark.parametrize("where", GIVEN)
def test_a_setting_says_what_is_in_its_place(where: str) -> None:
    for name in SETTINGS:
        with pytest.raises(ConfigurationError) as raised:
            GIVEN[where](name)
        assert f"{name}: {where} has no such setting any more: {SETTINGS[name]}" in str(raised.value)


def test_a_setting_that_never_was_says_what_there_is() -> None:
    with pytest.raises(ConfigurationError, match=r"failover: Session has no such setting, only quorum, .*, config$"):
        GIVEN["Session"]("failover")
    with pytest.raises(ConfigurationError, match=r"^network: pass the NetworkConfig as the first argument$"):
        ThcReducer(network=3, worker=0, workers=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["mesh", "nodes"])
def test_nobody_is_told_to_give_an_argument_that_is_not_there(name: str) -> None:
    """compress_reduce_scatter() has no levels=."""
    settings: Any = {name: None}
    with pytest.raises(ConfigurationError, match=f"{name}: .* ThcReducer take levels=.* the mesh of fully_shard"):
        choose_config(None, settings)


@pytest.mark.parametrize("name", GONE)
def test_a_name_that_is_gone_says_what_is_in_its_place(name: str) -> None:
    with pytest.raises(ImportError) as raised:
        exec(f"from byteps_thc import {name}")
    assert str(raised.value) == f"byteps_thc has no {name} any more: {GONE[name]} (docs/migration.md)"
    assert not hasattr(byteps_thc, name)


@pytest.mark.parametrize("variable_name", ["CONFIG", "POLICY", "SERVERS"])
def test_so_it_does_in_a_variable(variable_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.setenv(f"THC_{variable_name}", f"{name}=1")
        with pytest.raises(ConfigurationError) as raised:
            Compression.thc(servers=["10.0.0.1"])
        assert str(raised.value) == f"THC_{variable_name}: {name}: there is no such setting{instead_of(name)}"


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_that_is_set_says_what_is_in_its_place(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    for read in (ThcConfig.from_environment, NetworkConfig.from_environment, Compression.thc, lambda: variable("RUN")):
        with pytest.raises(ConfigurationError) as raised:
            read()
        assert str(raised.value) == f"{name} is not supported any more: {VARIABLES[name].format(1)}"


def test_there_are_thirteen_variables() -> None:
    assert len(NAMES) == 13
    assert not {f"THC_{name}" for name in NAMES} & VARIABLES.keys()
    # What is to be written instead is a setting that there is.
    for instead in VARIABLES.values():
        words = instead.split()
        assert words[0] != "set" or words[1].partition("=")[0].removeprefix("THC_") in NAMES


def test_a_variable_that_never_was_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    for name in ("THC_POLICYY", "THC_BITS", "THC_SLOTS", "THC_TESTBED_RESULTS", "THC_PS", "THCX"):
        monkeypatch.setenv(name, "3")
    for _ in range(2):
        ThcConfig.from_environment()
    monkeypatch.setenv("THC_OF_RANK_1", "3")
    monkeypatch.setenv("RANK", "1")
    ThcConfig.from_environment()
    nothing = "there is no such variable, and nothing reads it"
    written = "THC_CONFIG=bits=4,down_bits=6 and THC_POLICY=warmup_steps=100,exclude=lm_head"
    assert sorted(caplog.messages) == [
        f"THC_BITS: {nothing}: settings go into {written}",
        f"THC_POLICYY: {nothing}: did you mean THC_POLICY?",
        f"THC_SLOTS: {nothing}{instead_of('slots')}",
    ]
