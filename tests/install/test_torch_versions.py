"""The oldest and the newest torch that are promised, and one that lacks a name."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from byteps_thc._base.built import NEWEST_TORCH, OLDEST_TORCH

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("torch_version_rank.py")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "byteps_thc"
#: pip's message where no registry is reachable, or none has the version for this Python.
UNREACHABLE = ("No matching distribution", "Could not find a version", "Connection", "Temporary failure", "timed out")


def torch_of(version: str) -> Path:
    """Return the folder of a torch release and its dependencies, 7 GB, which is filled once."""
    folder = CACHE / f"torch-{version}-py{sys.version_info.major}.{sys.version_info.minor}"
    if folder.exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(CACHE).free < 20 << 30:
        pytest.skip(f"{CACHE} has less than 20 GB left for torch {version}")
    begun = folder.with_name(f"{folder.name}-{os.getpid()}")
    options = ["--quiet", "--no-compile", "--no-cache-dir", "--retries=1", f"--target={begun}"]
    try:
        command = [sys.executable, "-m", "pip", "install", *options, f"torch=={version}.*"]
        made = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if made.returncode and any(text in made.stderr for text in UNREACHABLE):
            pytest.skip(f"no registry with torch {version}: {made.stderr.strip().splitlines()[-1]}")
        assert made.returncode == 0, made.stderr
        begun.rename(folder)
    finally:
        shutil.rmtree(begun, ignore_errors=True)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("version", [OLDEST_TORCH, NEWEST_TORCH])
def test_front_ends_work_with_the_oldest_and_the_newest(version: str, tmp_path: Path) -> None:
    """In its folder is torch alone; all else is this Python's."""
    settings = {"PYTHONPATH": str(torch_of(version)), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    command += [str(PROGRAM), str(tmp_path)]
    environment = os.environ | settings
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    assert f"averaged with torch {version}." in result.stdout


@pytest.mark.parametrize(
    ("front_end", "change", "name"),
    [
        ("byteps_thc.ddp", "del torch.distributed.ProcessGroup.get_group_store", "ProcessGroup.get_group_store"),
        (
            "byteps_thc.fsdp",
            "from torch.distributed.fsdp import FSDPModule as f; del f.set_custom_reduce_scatter",
            "FSDPModule.set_custom_reduce_scatter",
        ),
    ],
)
def test_what_torch_lacks_is_named_at_import(front_end: str, change: str, name: str) -> None:
    command = [sys.executable, "-P", "-c", f"import torch; {change}; import {front_end}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    [line] = [each for each in result.stderr.splitlines() if each.startswith("ImportError: ")]
    assert f"lacks {name}: byteps_thc supports torch {OLDEST_TORCH} to {NEWEST_TORCH}" in line


def test_packages_say_the_oldest() -> None:
    assert f'torch = ["torch>={OLDEST_TORCH}"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_private_names_of_torch_stand_in_one_file() -> None:
    private = re.compile(
        r"torch\._C|_execution_engine|\._fsdp_|_get_fsdp_state|\._comm_hooks|_reduce_scatter_comm|\._get_backend|"
        r"_all_reduce_hook\b(?<!set_all_reduce_hook)(?<!fsdp_all_reduce_hook)|_module_info\b(?<!fsdp_module_info)|_orig_(size|dtype)"
    )
    users = {
        path.name for path in (ROOT / "byteps_thc").rglob("*.py") if private.search(path.read_text(encoding="utf-8"))
    }
    assert users == {"torch_private.py"}
