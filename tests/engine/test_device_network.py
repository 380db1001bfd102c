"""Rare cases of device kernels with servers, on CPU tensors and through a real thc-ps.

test_network.py has averages and residuals of all settings, test_mismatch.py different gradients.
"""

from pathlib import Path

from reports import Reports, reports_of

reports = reports_of(Path(__file__).with_name("device_network_rank.py"), 2, server=True)


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
