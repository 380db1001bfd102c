"""Engines of ranks on a device, without one: Triton's interpreter works on CPU tensors, gloo is in NCCL's place."""

from __future__ import annotations

from typing import Any

import torch

from byteps_thc._engine import factory
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.communicator import Communicator
from byteps_thc._net.groups import Communicators
from byteps_thc._scheme.config import ThcConfig

#: Variables of the ranks before they import Triton.
INTERPRETER = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


def take_cpu_for_device_of_ranks() -> None:
    """From now on, engines among the ranks of this process are on a device, unless kernels="host"."""

    def device_of(_group: Any, _config: ThcConfig, policy: CompressionPolicy, *_: Any, **_other: Any) -> Any:
        return None if policy.kernels == "host" else torch.device("cpu")

    def of_device(communicators: Communicators) -> Communicator:
        [own] = communicators.of_host(1)
        return own

    factory.device_of = device_of
    Communicators.of_device = of_device  # type: ignore[method-assign]
