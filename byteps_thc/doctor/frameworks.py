"""Checks of what gradients come from: torch, GPUs, BytePS."""

from __future__ import annotations

from collections.abc import Sequence

from byteps_thc.doctor.finding import Finding, State
from byteps_thc.doctor.processes import ProbeError, run_command, run_probe

_IMPORT_DEADLINE_S = 60.0
_NVIDIA_SMI_DEADLINE_S = 10.0
_BUILD_BYTEPS = "make byteps"


def check_torch() -> Sequence[Finding]:
    """torch, its process group back ends, and GPUs."""
    try:
        answer = run_probe("torch_probe", _IMPORT_DEADLINE_S)
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
        meaning = f"{', '.join(usable)}; gradients are copied to the host for compression (no GPU kernels yet)"
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
    """BytePS and its PyTorch plug-in."""
    try:
        answer = run_probe("byteps_probe", _IMPORT_DEADLINE_S)
    except ProbeError as error:
        meaning = f"BytePS is installed, and byteps.torch cannot be imported: {error}"
        return [Finding("BytePS", State.PROBLEM, meaning, _BUILD_BYTEPS)]
    if not answer["installed"]:
        meaning = "not installed: needed for byteps_thc.torch and bpslaunch only"
        return [Finding("BytePS", State.OPTIONAL, meaning, _BUILD_BYTEPS)]
    return [Finding("BytePS", State.OK, f"{answer['version']}")]
