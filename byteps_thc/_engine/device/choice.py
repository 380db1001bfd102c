"""Whether gradients are compressed on a device."""

import importlib
import logging
import re

import torch
import torch.distributed as dist

from byteps_thc._base.arrays import indexed_device
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.limits import MAX_GPU_ROTATION_BLOCK
from byteps_thc._base.settings import warn_once
from byteps_thc._engine.device.self_check import fault_of
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.groups import Communicators, backends, refusals_told
from byteps_thc._net.handshake import gather_by_rank
from byteps_thc._scheme.adding.server_codes import ServerCodes
from byteps_thc._scheme.decoding.settings import RankCodes

_LEAST_TRITON = (3, 6)  # the first with Gluon
#: A rank's answer if its GPU compresses.
_SOUND = "same bits"

_logger = logging.getLogger("byteps_thc")


def agree_on_kernels(
    process_group: dist.ProcessGroup,
    codes: RankCodes | None,
    policy: CompressionPolicy,
    gradients_on: torch.device | None,
    *,
    sharded: bool = False,
    gathers: bool = False,
) -> CompressionPolicy:
    """Return the policy with "device" or "host" in place of kernels="auto", the same on all ranks; collective.

    Without NCCL or other ranks, nothing is compared. Rank 0 warns of the first rank whose kernels are of no use.
    codes: None: servers sum, and the policy stays. gradients_on: None if unknown. sharded, gathers: as fault_of()'s.
    Raises fault_of()'s errors on the rank with the fault, and ConfigurationError on the others then.
    """
    if process_group.size() == 1 or "nccl" not in backends(process_group):
        return policy
    chooses, reason, device = policy.kernels == "auto", "", None
    with refusals_told(process_group):
        if codes is not None:
            device = gpu_of(process_group, gradients_on)
            if chooses and device is not None:
                reason = triton_lacks() or fault_of(device, codes, sharded=sharded, gathers=gathers) or _SOUND
    # All ranks ask, whatever their settings: later comparisons name settings that differ.
    gather = Communicators(process_group, policy.deadline_s).for_questions().gather
    everyone = gather_by_rank(gather, reason)
    if policy.kernels == "device" or codes is None:
        return policy
    reasons = {rank: theirs for rank, theirs in everyone.items() if theirs not in ("", _SOUND)}
    on_device = chooses and {*everyone.values()} == {_SOUND}
    if device is not None and process_group.rank() == 0 and (reasons or not chooses):
        rank, text = next(iter(reasons.items()), (min(everyone), 'CompressionPolicy(kernels="host")'))
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        warn_once(
            f"gradients on the GPU are copied to host memory to be compressed, because of rank {rank}{more}: {text}. "
            "Plain DDP is faster, unless nodes have a slow network between them: compare both with `thc compare`"
        )
    return policy.model_copy(update={"kernels": "device" if on_device else "host"})


def gpu_of(process_group: dist.ProcessGroup, gradients_on: torch.device | None) -> torch.device | None:
    """Return the GPU of the gradients of ranks on NCCL, None for host memory. gradients_on: None if unknown."""
    names = backends(process_group)
    if "nccl" not in names:
        return None
    if gradients_on is None:  # a group with gloo averages gradients in host memory, too
        in_host_memory = "gloo" in names or not torch.cuda.is_available()
        return None if in_host_memory else indexed_device(torch.device("cuda"))
    return indexed_device(gradients_on) if gradients_on.type == "cuda" else None


def device_of(
    process_group: dist.ProcessGroup | None,
    codes: ServerCodes | None,
    policy: CompressionPolicy,
    gradients_on: torch.device | None,
) -> torch.device | None:
    """Return the GPU that compresses, None for the host; CompressionPolicy.kernels has the rules.

    process_group: None for workers that only servers connect. codes: of servers; None: codes travel between GPUs, over
    NCCL. policy: agree_on_kernels()'s; "auto" is the host. gradients_on: None if unknown. Raises ConfigurationError for
    kernels="device" if no GPU can compress.
    """
    says = policy.kernels == "auto" and codes is not None and (process_group is None or process_group.rank() == 0)
    if says and gradients_on is not None and gradients_on.type == "cuda":
        _logger.warning(
            "gradients on the GPU are copied to host memory to be compressed for servers: "
            'CompressionPolicy(kernels="device") compresses them on the GPU'
        )
    if policy.kernels != "device":
        return None
    names = None if process_group is None or codes is not None else backends(process_group)
    if (reason := _why_not(names, codes, gradients_on)) is not None:
        raise ConfigurationError(f'CompressionPolicy(kernels="device"): {reason}')
    return indexed_device(torch.device("cuda") if gradients_on is None else gradients_on)


def _why_not(names: list[str] | None, codes: ServerCodes | None, gradients_on: torch.device | None) -> str | None:
    if gradients_on is not None and gradients_on.type != "cuda":
        return f"gradients are on {gradients_on}"
    if names is not None and "nccl" not in names:
        return f"the process group has {' and '.join(names)}, not NCCL"
    if codes is not None and codes.rotation_block > MAX_GPU_ROTATION_BLOCK:
        return f"rotation_block {codes.rotation_block} is too large for the GPU kernels: use {MAX_GPU_ROTATION_BLOCK}"
    if gradients_on is None and not torch.cuda.is_available():
        return "torch finds no GPU, so omit kernels, or use a host with a GPU"
    return triton_lacks()


def triton_lacks() -> str | None:
    try:
        version = str(importlib.import_module("triton").__version__)
        numbers = re.match(r"(\d+)\.(\d+)", version)
        if numbers is not None and (int(numbers[1]), int(numbers[2])) < _LEAST_TRITON:
            return f"Triton {version} is too old: pip install 'torch>=2.10' 'triton>=3.6'"
        importlib.import_module("triton.experimental.gluon")
    except Exception as error:  # loading Triton may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name == "triton":
            return "Triton is not installed: pip install 'triton>=3.6'"
        return f"Triton is installed, but does not load ({type(error).__name__}: {error}): mend the cause"
    return None
