"""Optimizers of one process do not mix their gradients, on any route."""

from pathlib import Path

import pytest
from byteps_lab import BytepsLab

from byteps_thc._cli.launch import ParameterServer

pytestmark = pytest.mark.byteps
PROGRAM = Path(__file__).with_name("programs") / "several_optimizers.py"


def test_an_optimizer_for_each_layer(tmp_path):
    with ParameterServer() as thc_ps, BytepsLab(tmp_path) as lab:
        lab.start(PROGRAM, environment={"THC_SERVERS": thc_ps.address})
        for worker in lab.wait(deadline_s=140):
            assert worker.status == 0, worker.output
        lab.wait_servers()
