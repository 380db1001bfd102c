"""BytePS itself, as `make byteps` builds it: scheduler, server and workers on loopback."""

from pathlib import Path

import pytest
from byteps_lab import BytepsLab

pytestmark = pytest.mark.byteps

PROGRAM = Path(__file__).parent / "programs" / "plain_push_pull.py"


def test_sums_of_all_dtypes_arrive_and_everything_ends(tmp_path: Path) -> None:
    with BytepsLab(tmp_path, workers=2) as lab:
        lab.start(PROGRAM)
        for worker, finished in enumerate(lab.wait()):
            assert finished.status == 0, lab.outputs()
            assert f"worker {worker} of 2: sums are right" in finished.output
        lab.wait_servers()
        segments = list(Path("/dev/shm").glob(f"BytePS_*_{lab.port}_*"))
    assert not segments


def test_a_failing_program_has_its_status_and_output_reported(tmp_path: Path) -> None:
    with BytepsLab(tmp_path, workers=2) as lab:
        lab.start(tmp_path / "there is no such program.py")
        for finished in lab.wait():
            assert finished.status != 0
            assert "there is no such program.py" in finished.output
