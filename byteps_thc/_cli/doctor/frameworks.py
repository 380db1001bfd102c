"""Checks of the sources of gradients: torch, GPUs, BytePS."""

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from byteps_thc._cli.doctor.finding import Finding, State
from byteps_thc._cli.doctor.processes import ProbeError, run_command, run_probe
from byteps_thc._net.byteps import leftover_memory

_IMPORT_DEADLINE_S = 90.0
_NVIDIA_SMI_DEADLINE_S = 10.0
_SHARED_MEMORY_BYTES = 1 << 30
_BUILD_BYTEPS = "make byteps"


def check_torch() -> Sequence[Finding]:
    """torch, its process group back ends, and GPUs."""
    try:
        answer = run_probe("torch", _IMPORT_DEADLINE_S)
    except ProbeError as error:
        return [Finding("torch", State.PROBLEM, f"cannot be imported: {error}", "pip install --force-reinstall torch")]
    if not answer["installed"]:
        meaning = "not installed: no DDP, FSDP2 or BytePS; NumPy gradients and thc-ps work"
        return [Finding("torch", State.OPTIONAL, meaning, "pip install torch"), _check_gpu([], "")]
    backends = [name for name in ("gloo", "nccl") if answer[name]]
    if not backends:
        meaning = f"{answer['version']} has neither gloo nor NCCL: no DDP, no FSDP2"
        return [Finding("torch", State.PROBLEM, meaning, "pip install --force-reinstall torch")]
    meaning = f"{answer['version']} with {' and '.join(backends)}"
    return [Finding("torch", State.OK, meaning), _check_gpu(answer["gpus"], answer["built_for_cuda"] or "")]


def _check_gpu(usable: Sequence[str], built_for_cuda: str) -> Finding:
    if usable:
        meaning = f"{', '.join(usable)}; CompressionPolicy(kernels=...) says who compresses (docs/gpu.md)"
        return Finding("GPU", State.OK, meaning)
    outcome = run_command(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], _NVIDIA_SMI_DEADLINE_S)
    if outcome.code == 127:
        return Finding("GPU", State.OPTIONAL, "none; gradients on the CPU")
    if outcome.code != 0:
        meaning = f"nvidia-smi is there, and the driver does not answer: {outcome.reason}"
        return Finding("GPU", State.PROBLEM, meaning, "nvidia-smi")
    names = ", ".join(outcome.output.split("\n")).strip(", ")
    if not built_for_cuda:
        return Finding("GPU", State.PROBLEM, f"{names}, and torch is built without CUDA", "pip install torch")
    return Finding("GPU", State.PROBLEM, f"{names}, and torch (CUDA {built_for_cuda}) does not see it", "nvidia-smi")


def check_byteps() -> Sequence[Finding]:
    """BytePS, its PyTorch plug-in, and THC's compressor for its servers."""
    try:
        answer = run_probe("byteps", _IMPORT_DEADLINE_S)
    except ProbeError as error:
        answer = {"installed": True, "error": str(error)}
    if not answer["installed"]:
        meaning = "not installed: needed for byteps_thc.torch and bpslaunch only"
        return [Finding("BytePS", State.OPTIONAL, meaning, _BUILD_BYTEPS)]
    if "error" in answer:
        meaning = f"is installed and does not work, as after an update of torch or of this package: {answer['error']}"
        return [Finding("BytePS", State.PROBLEM, meaning, _BUILD_BYTEPS)]
    what = f"{answer['version']} imports with torch {answer['torch']}"
    if not answer["compressor"]:
        meaning = f"{what}; without THC's compressor, so only the route through thc-ps or a switch works"
        return [Finding("BytePS", State.PROBLEM, meaning, _BUILD_BYTEPS)]
    return [Finding("BytePS", State.OK, f"{what}; THC's compressor for its servers loads")]


def check_shared_memory(folder: str = "/dev/shm") -> Sequence[Finding]:
    """Room in shared memory, where BytePS keeps gradients; containers often get 64 MiB."""
    try:
        space = shutil.disk_usage(folder)
    except OSError as error:
        return [Finding("shared memory", State.PROBLEM, f"{folder}: {error.strerror}; BytePS needs it")]
    free_mib = space.free >> 20
    if space.free >= _SHARED_MEMORY_BYTES:
        return [Finding("shared memory", State.OK, f"{free_mib} MiB free in {folder}")]
    meaning = f"{free_mib} MiB free in {folder}, where BytePS keeps gradients: a bus error when it is full"
    command = "mount -o remount,size=8G /dev/shm    # or: docker run --shm-size 8g"
    return [Finding("shared memory", State.PROBLEM, meaning, command)]


def check_leftovers(folder: Path = leftover_memory.FOLDER) -> Sequence[Finding]:
    """Gradients of BytePS workers that were killed. The next run removes them, too."""
    name, sizes_bytes = "left-over gradients", []
    for path in leftover_memory.find(folder):
        with contextlib.suppress(OSError):  # gone meanwhile
            sizes_bytes.append(path.stat().st_size)
    if not sizes_bytes:
        return [Finding(name, State.OK, f"none of BytePS workers in {folder}")]
    mib = sum(sizes_bytes) / (1 << 20)
    meaning = f"{len(sizes_bytes)} files, {mib:.1f} MiB, in {folder}; the next bpslaunch removes them"
    return [Finding(name, State.PROBLEM, meaning, f"python -m {leftover_memory.__name__}")]
