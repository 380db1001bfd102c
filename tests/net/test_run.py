"""Names of trainings that workers send."""

import pytest

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._net.run import run_number, run_of_launcher, run_of_scheduler, told_run
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._net.session import Session
from byteps_thc._scheme.adding.server_codes import ServerCodes
from byteps_thc.torch import Compression

LAUNCHERS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("THC_RUN", *LAUNCHERS):
        monkeypatch.delenv(name, raising=False)


def number(run: int | str | None) -> int:
    return run_number(told_run(run))


def test_numbers_and_texts_of_numbers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert number(7) == number("7") == 0xAF63AA4C86019796  # FNV-1a of "7"
    assert number(8) != number(7)
    monkeypatch.setenv("THC_RUN", "7")
    assert number(None) == number(7)
    assert number("other") == run_number("other"), "arguments win"


def test_variables_may_have_any_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers' variables may have any bytes; users' names are texts."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "\udcff")
    assert run_number(run_of_launcher()) not in (0, run_number("torchrun "))
    monkeypatch.setenv("THC_RUN", "\udcff")
    with pytest.raises(ConfigurationError, match="surrogate that UTF-8 cannot encode: pass a number or a text"):
        told_run(None)


def test_nothing_is_told_unless_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert number(None) == 0
    monkeypatch.setenv("THC_RUN", "")
    assert number(None) == 0
    assert number(0) != 0


@pytest.mark.parametrize("wrong", ["", True, 1.5, b"run", "\ud800"])
def test_other_runs_are_refused(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match=r"run is .*: pass a number or a text"):
        Session(["127.0.0.1"], job=1, worker=0, workers=1, codes=ServerCodes(), run=wrong)  # type: ignore[arg-type]


def test_a_scheduler_is_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_of_lane() -> int | str | None:
        return Compression.thc(servers=["10.0.0.1"]).network_of_lane(1).run

    assert run_of_scheduler() is run_of_lane() is None
    monkeypatch.setenv("DMLC_PS_ROOT_URI", "10.0.0.5")
    monkeypatch.setenv("DMLC_PS_ROOT_PORT", "9000")
    assert run_of_lane() == "scheduler 10.0.0.5:9000"
    monkeypatch.setenv("THC_RUN", "mine")
    assert run_of_lane() == "mine"
    assert Compression.thc(servers=["10.0.0.1"], run=5).network_of_lane(0).run == 5


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_a_scheduler_of_loopback_is_one_of_this_host(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("DMLC_PS_ROOT_URI", address)
    monkeypatch.setenv("DMLC_PS_ROOT_PORT", "9000")
    run = run_of_scheduler()
    assert run is not None
    assert run.startswith(f"scheduler {address}:9000 of ")
    assert run == run_of_scheduler()


@pytest.mark.parametrize(
    ("variables", "run"),
    [
        ({}, None),
        ({"TORCHELASTIC_RUN_ID": "none"}, None),  # torchrun's default, the same in all trainings
        ({"TORCHELASTIC_RUN_ID": "bert"}, "torchrun bert"),
        ({"SLURM_JOB_ID": "77"}, None),  # in the batch script, which srun has not started
        ({"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}, "slurm 77.0"),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "1"}, "slurm 77.1"),
        ({"TORCHELASTIC_RUN_ID": "bert", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "1"}, "torchrun bert"),
        ({"DMLC_PS_ROOT_URI": "10.0.0.5", "DMLC_PS_ROOT_PORT": "9000"}, "scheduler 10.0.0.5:9000"),
    ],
)
def test_launchers_name_the_run(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], run: str | None) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert run_of_launcher() == run
    assert told_run(None) is None, "ranks of a process group agree on a number of their own"


def test_the_network_config_of_the_environment_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THC_SERVERS", "10.0.0.1")
    monkeypatch.setenv("THC_RUN", "mine")
    network = NetworkConfig.from_environment()
    assert network.run == "mine"
    assert network.shared_settings(2)["run"] == "mine"
    assert NetworkConfig(["10.0.0.1"], run=7).shared_settings(2)["run"] == "7"
