"""A quorum leaves a slow rank behind, whose replica is made identical again."""

from pathlib import Path

import pytest
import torch

from byteps_thc import ConfigurationError, NetworkConfig, ServerCodes, Session
from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.network_settings import resolve_quorum
from byteps_thc.torch.settings import ThcCompression
from thc_lab.ranks import run_ranks

PROGRAM = Path(__file__).with_name("quorum_rank.py")


def test_a_rank_that_is_left_behind_drifts(tmp_path: Path) -> None:
    """A server with many slots would keep the sums of all steps for the rank that is late."""
    with ParameterServer(["--slots", "16"]) as server:
        reports = run_ranks(PROGRAM, 3, tmp_path / "ranks", settings={"servers": [server.address]})
    before = [report["before"]["module.weight"] for report in reports]
    assert not torch.equal(before[0], before[2])
    for report in reports:
        assert 0.1 < report["missing"] <= 1
        for name, value in report["after"].items():
            assert torch.equal(value, reports[0]["before"][name])
        for ours, first in zip(report["momentum"], reports[0]["momentum"], strict=True):
            assert torch.equal(ours, first)
        assert "quorum is 2 on rank 0, 3 on rank 1, 3 on rank 2" in report["refused"]


def test_a_share_is_rounded_up() -> None:
    assert [resolve_quorum(0.9, workers) for workers in (1, 2, 9, 10, 11, 20, 63)] == [1, 2, 9, 9, 10, 18, 57]
    assert resolve_quorum(0.07, 100) == 7  # 0.07 * 100 is more than 7
    assert [resolve_quorum(quorum, 4) for quorum in (None, 1, 4, 0.25, 0.26, 1e-9)] == [4, 1, 4, 1, 2, 1]


@pytest.mark.parametrize("quorum", [0, -1, 5, 0.0, 1.0, 1.5, -0.5, float("nan"), True, "90%"])
def test_what_is_no_quorum_is_refused(quorum: object) -> None:
    with pytest.raises(ConfigurationError, match="quorum"):
        resolve_quorum(quorum, 4)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="quorum"):
        Session(["127.0.0.1"], job=1, worker=0, workers=4, codes=ServerCodes(), quorum=quorum)  # type: ignore[arg-type]


def test_byteps_takes_shares_from_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, quorum in (("0.9", 0.9), ("3", 3)):
        monkeypatch.setenv("THC_SERVERS", f"10.0.0.1,quorum={text}")
        settings = ThcCompression()
        assert settings.quorum == quorum
        assert isinstance(settings.quorum, type(quorum))
        assert settings.network_of_lane(0) == NetworkConfig(servers=("10.0.0.1",), quorum=quorum)
    for text in ("1.0", "0", "90%"):
        monkeypatch.setenv("THC_SERVERS", f"10.0.0.1,quorum={text}")
        with pytest.raises(ConfigurationError, match="quorum"):
            ThcCompression()
