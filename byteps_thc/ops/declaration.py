"""What an operator is, what a call of it does, and what torch knows of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from byteps_thc.errors import InputError


class Operator(ABC):
    """One call. A class has the operator's arguments as fields, in the order of the schema.

    outputs: what results() has returned, to be written. mutates: arguments that the kernels write.
    """

    schema: ClassVar[str]
    mutates: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def name(cls) -> str:
        """Return the operator's name."""
        return cls.schema.partition("(")[0]

    @abstractmethod
    def check(self) -> None:
        """Raise InputError unless the arguments are what functions.py says."""

    @abstractmethod
    def results(self) -> list[Tensor]:
        """Return what the operator returns, with nothing in it, also for sizes that are symbolic."""

    @abstractmethod
    def on_host(self, outputs: list[Tensor]) -> None:
        """Call the kernels that Compressor calls, on one thread."""

    @abstractmethod
    def on_device(self, outputs: list[Tensor], kernels: Any) -> None:
        """Call the kernels that DevicePartition calls; kernels: byteps_thc.gpu.kernels, which needs Triton."""

    @classmethod
    def run_on_host(cls, *arguments: Any) -> Any:
        """Check the arguments, and return results of the kernels of csrc/, of CPU tensors."""
        call, outputs = cls._begin(arguments)
        call.on_host(outputs)
        return _returned(outputs)

    @classmethod
    def run_on_device(cls, *arguments: Any) -> Any:
        """The same by the kernels of byteps_thc/gpu, of GPU tensors; of CPU tensors in Triton's interpreter."""
        from byteps_thc.gpu import kernels

        call, outputs = cls._begin(arguments)
        with torch.cuda.device_of(outputs[0]):  # type: ignore[no-untyped-call]  # on which kernels are launched
            call.on_device(outputs, kernels)
        return _returned(outputs)

    @classmethod
    def shapes(cls, *arguments: Any) -> Any:
        """Return results() of a call, unchecked."""
        return _returned(cls(*arguments).results())

    @classmethod
    def _begin(cls, arguments: tuple[Any, ...]) -> tuple[Operator, list[Tensor]]:
        call = cls(*arguments)
        call.check()
        _require_one_device(arguments)
        return call, call.results()


def register(operator: type[Operator]) -> None:
    """Make it torch.ops.byteps_thc.NAME."""
    name = operator.name()
    registered = torch.library.custom_op(
        f"byteps_thc::{name}",
        operator.run_on_host,
        mutates_args=operator.mutates,
        device_types="cpu",
        schema=operator.schema.removeprefix(name),
    )
    registered.register_kernel("cuda", operator.run_on_device)
    registered.register_fake(operator.shapes)


def _returned(outputs: list[Tensor]) -> Any:
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _require_one_device(arguments: tuple[Any, ...]) -> None:
    flat = [one for argument in arguments for one in (argument if isinstance(argument, list | tuple) else [argument])]
    devices = [one.device for one in flat if isinstance(one, Tensor)]
    for device in devices:
        if device != devices[0]:
            raise InputError(f"tensors are on {devices[0]} and {device}: they must be on one device")
