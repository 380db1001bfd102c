"""Engines of ranks on a device, without one: Triton's interpreter works on CPU tensors, device_group.py is NCCL."""

from typing import Any

import torch
from device_group import take_store_for_nccl

from byteps_thc._engine import factory
from byteps_thc._engine.policy import CompressionPolicy

#: Variables of the ranks before they import Triton.
INTERPRETER = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


def take_cpu_for_device_of_ranks() -> None:
    """From now on, engines and gathers among the ranks of this process are on a device, unless kernels="host"."""
    from byteps_thc.fsdp import compressed_all_gather  # a slow import

    def device_of(_group: Any, _codes: object, policy: CompressionPolicy, *_: Any, **_other: Any) -> Any:
        return None if policy.kernels == "host" else torch.device("cpu")

    factory.device_of = compressed_all_gather.device_of = device_of
    take_store_for_nccl()
