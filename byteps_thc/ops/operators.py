"""What torch knows of the operators: names, effects, shapes, and what runs where (host.py, device.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from byteps_thc.ops import host
from byteps_thc.ops.arguments import blocks_of, code_bits_of, packed_bytes, padded_of


def _block_norms(gradient: Tensor, residual: Tensor | None, rotation_block: int) -> Tensor:  # noqa: ARG001
    return gradient.new_empty(blocks_of(gradient.numel(), rotation_block), dtype=torch.float32)


def _encode(
    gradient: Tensor,
    residual: Tensor | None,  # noqa: ARG001
    norms: Tensor,  # noqa: ARG001
    max_norms: Tensor,  # noqa: ARG001
    table: Sequence[Tensor],
    *_: object,
) -> tuple[Tensor, Tensor, Tensor]:
    codes = packed_bytes(padded_of(gradient.numel()), code_bits_of(table))
    return (
        gradient.new_empty(codes, dtype=torch.uint8),
        gradient.new_empty(1, dtype=torch.int32),
        gradient.new_empty(1, dtype=torch.int64),
    )


def _lookup_sum(codes: Tensor, table: Sequence[Tensor], value_bits: int) -> Tensor:
    dtype = torch.uint8 if value_bits == 8 else torch.uint16
    return codes.new_empty(codes.shape[1] * 8 // code_bits_of(table), dtype=dtype)


def _pack(numbers: Tensor, bits: int) -> Tensor:
    return numbers.new_empty(packed_bytes(numbers.numel(), bits), dtype=torch.uint8)


def _decode(
    aggregate: Tensor,
    max_norms: Tensor,  # noqa: ARG001
    table: Sequence[Tensor],  # noqa: ARG001
    key: Tensor,  # noqa: ARG001
    coordinates: int,
    workers: int,  # noqa: ARG001
    threshold: float,  # noqa: ARG001
    rotation_block: int,  # noqa: ARG001
    dtype: torch.dtype,
    *_: object,
) -> Tensor:
    return aggregate.new_empty(coordinates, dtype=dtype)


def _register(schema: str, shapes: Callable[..., Any], *, mutates_args: tuple[str, ...] = ()) -> None:
    """Make an operator. shapes: what it returns, with nothing in it, also for sizes that are symbolic."""
    name = schema.partition("(")[0]

    def on_device(*arguments: Any) -> Any:
        from byteps_thc.ops import device  # it needs Triton

        with torch.cuda.device(arguments[0].device):  # on which kernels are launched
            return getattr(device, name)(*arguments)

    operator = torch.library.custom_op(
        f"byteps_thc::{name}",
        getattr(host, name),
        mutates_args=mutates_args,
        device_types="cpu",
        schema=schema.removeprefix(name),
    )
    operator.register_kernel("cuda", on_device)
    operator.register_fake(shapes)


_register("block_norms(Tensor gradient, Tensor? residual, SymInt rotation_block) -> Tensor", _block_norms)
_register(
    "encode(Tensor gradient, Tensor(a!)? residual, Tensor norms, Tensor max_norms, Tensor[] table, Tensor key,"
    " float threshold, SymInt rotation_block) -> (Tensor, Tensor, Tensor)",
    _encode,
    mutates_args=("residual",),
)
_register("lookup_sum(Tensor codes, Tensor[] table, SymInt value_bits) -> Tensor", _lookup_sum)
_register("pack(Tensor numbers, SymInt bits) -> Tensor", _pack)
_register(
    "decode(Tensor aggregate, Tensor max_norms, Tensor[] table, Tensor key, SymInt coordinates, SymInt workers,"
    " float threshold, SymInt rotation_block, ScalarType dtype, SymInt? sum_bits=None) -> Tensor",
    _decode,
)
