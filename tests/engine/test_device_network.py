"""Device kernels with servers, in what happens seldom, on CPU tensors and through a real thc-ps.

Averages and residuals of all settings are in test_network.py, different gradients in test_mismatch.py, BytePS in
tests/byteps_torch; tests/gpu has the kernels of the GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

from byteps_thc._cli.launch import ParameterServer

PROGRAM = Path(__file__).with_name("device_network_rank.py")
Reports = list[dict[str, Any]]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    with ParameterServer() as server, ParameterServer() as victim:
        settings = {"servers": [server.address], "victim": [victim.address, victim.process.pid]}
        return run_ranks(PROGRAM, 2, tmp_path_factory.mktemp("ranks"), settings=settings)


def test_steps_that_a_scaler_skips_are_those_of_the_host(reports: Reports) -> None:
    for report in reports:
        checks = report["skipped_steps"]
        assert len(checks) == 6
        assert all(checks.values()), checks


def test_either_engine_goes_on_with_the_others_checkpoint(reports: Reports) -> None:
    assert [report["checkpoints"] for report in reports] == [[True, True]] * 2


def test_a_gradient_elsewhere_is_copied_there_and_back(reports: Reports) -> None:
    assert [report["elsewhere"] for report in reports] == [[True, True]] * 2


def test_all_front_ends_send_codes_from_the_device(reports: Reports) -> None:
    wanted = {"ddp": True, "hsdp": True, "reducer": True, "reducer_alone": True}
    assert [report["front_ends"] for report in reports] == [wanted, wanted]


def test_sums_without_some_workers_have_the_bits_of_the_host(reports: Reports) -> None:
    """With lost packets some chunks have both workers, one or none; with a quorum of one, never none."""
    assert all(report["lost packets"]["missing"] > 0 for report in reports)
    assert {0, 1, 2} >= {*reports[0]["lost packets"]["contributions"]} > {2}
    assert {1} <= {*reports[0]["quorum"]["contributions"], *reports[1]["quorum"]["contributions"]} <= {1, 2}


def test_a_dead_server_is_an_error(reports: Reports) -> None:
    for report in reports:
        first, later = report["dead server"]
        assert first.startswith(("TransportError: ", "DeadlineError: ")), first
        assert later.startswith("TransportError: the engine has ended: "), later


def test_what_one_rank_cannot_have_is_an_error_on_all(reports: Reports) -> None:
    for report in reports:
        assert "kernels is 'any' on rank 0, " in report["refused"]
        assert "rotation_block 32768 is too large for the GPU kernels" in report["refused"]
