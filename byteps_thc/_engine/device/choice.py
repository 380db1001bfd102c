"""Whether gradients are compressed on a device."""

from __future__ import annotations

import importlib.util
import logging
import re
from importlib import metadata

import torch
import torch.distributed as dist

from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.groups import backends
from byteps_thc._scheme.arrays import indexed_device
from byteps_thc._scheme.config import ThcConfig
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc._scheme.limits import MAX_GPU_ROTATION_BLOCK

_LEAST_TRITON = (3, 6)  # the first with Gluon
#: Engines that kernels="auto" puts on a GPU. Add an engine once `make bench-gpu` has passed with it.
TRIED: frozenset[str] = frozenset()
_TRITON_PACKAGES = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm", "triton-windows")

_logger = logging.getLogger("byteps_thc")


def device_of(
    process_group: dist.ProcessGroup | None,
    config: ThcConfig,
    policy: CompressionPolicy,
    gradients_on: torch.device | None,
    *,
    engine: str,
    needs_nccl: bool = True,
) -> torch.device | None:
    """Return the GPU that compresses, None for the host; CompressionPolicy.kernels has the rules.

    process_group: None for workers that only servers connect. gradients_on: None if unknown. engine: a name of TRIED.
    needs_nccl: codes travel between GPUs. Raises ConfigurationError for kernels="device" if no GPU can compress.
    """
    names = [] if process_group is None else backends(process_group)
    if policy.kernels == "host":
        return None
    if policy.kernels == "auto":
        if gradients_on is None and ("gloo" in names or "nccl" not in names):
            return None  # servers accept codes of gradients in host memory, too
        if (needs_nccl and "nccl" not in names) or (gradients_on is not None and gradients_on.type != "cuda"):
            return None
    reason = _why_not(names if needs_nccl else None, config, gradients_on)
    if reason is None and policy.kernels == "auto" and engine not in TRIED:
        reason = 'GPU kernels of this engine have not run on a GPU yet: CompressionPolicy(kernels="device") uses them'
    if reason is None:
        return indexed_device(torch.device("cuda") if gradients_on is None else gradients_on)
    if policy.kernels == "device":
        raise ConfigurationError(f'CompressionPolicy(kernels="device"): {reason}')
    _logger.warning("gradients on the GPU are copied to host memory to be compressed: %s", reason)
    return None


def _why_not(names: list[str] | None, config: ThcConfig, gradients_on: torch.device | None) -> str | None:
    if gradients_on is not None and gradients_on.type != "cuda":
        return f"gradients are on {gradients_on}"
    if names is not None and "nccl" not in names:
        return f"the process group has {' and '.join(names)}, not NCCL"
    if names is None and config.rotation_block > MAX_GPU_ROTATION_BLOCK:  # ranks have no rotation blocks
        return f"rotation_block {config.rotation_block} is too large for the GPU kernels: use {MAX_GPU_ROTATION_BLOCK}"
    if gradients_on is None and not torch.cuda.is_available():
        return "torch finds no GPU, so omit kernels, or use a host with a GPU"
    return _triton_lacks()


def _triton_lacks() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed: pip install 'triton>=3.6'"
    version = _triton_version()
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    if numbers is None:  # an unknown package: test for the needed names
        try:
            importlib.import_module("triton.experimental.gluon")
        except Exception as error:
            return f"Triton does not load ({error}): pip install 'triton>=3.6'"
        return None
    if (int(numbers[1]), int(numbers[2])) < _LEAST_TRITON:
        return f"Triton {version} is too old: pip install 'triton>=3.6'"
    return None


def _triton_version() -> str | None:
    """Return Triton's version, None if unknown, without the second that importing Triton takes."""
    for package in _TRITON_PACKAGES:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None
