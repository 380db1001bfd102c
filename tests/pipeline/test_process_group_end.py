"""Our plug-ins are imported before there is a process group: then nothing holds it after destroy_process_group()."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# The optimizer imports much of torch, with functions whose default argument is the default group.
CODE = """
import importlib, pathlib, sys, torch
importlib.import_module(sys.argv[1])
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=0, world_size=1)
torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))])
torch.distributed.destroy_process_group()
print(*(path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")))
"""


@pytest.mark.parametrize("module", ["byteps_thc.ddp", "byteps_thc.fsdp", "byteps_thc.tools.demo.worker"])
def test_no_thread_of_the_group_is_left_to_abort_the_process(module: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", CODE, module, str(tmp_path / "rendezvous")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert "gloo" not in result.stdout, result.stdout
