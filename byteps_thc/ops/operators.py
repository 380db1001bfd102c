"""The operators, each declared once: schema, checks, shapes, and the kernel on the host and on a device.

functions.py says what they compute. A class has the arguments of one operator, in the order of its schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc import _core
from byteps_thc.arrays import everybody, gradient_view, require_tensor, residual_of_tensor
from byteps_thc.compressor import LARGEST_NORM
from byteps_thc.errors import InputError
from byteps_thc.ops.arguments import (
    blocks_of,
    check_gradient,
    check_key,
    check_norms,
    check_table,
    code_bits_of,
    device_table,
    host_key,
    packed_bytes,
    padded_of,
)
from byteps_thc.ops.declaration import Operator, register
from byteps_thc.tables.device import DeviceTable
from byteps_thc.wire.layout import MIN_CODES_PER_PACKET
from byteps_thc.worker_limits import MAX_RANKS

_SUMS = (torch.uint8, torch.uint16)


@dataclass(frozen=True, eq=False)
class BlockNorms(Operator):
    """Norms of rotation blocks."""

    schema = "block_norms(Tensor gradient, Tensor? residual, SymInt rotation_block) -> Tensor"
    gradient: Tensor
    residual: Tensor | None
    rotation_block: int

    @override
    def check(self) -> None:
        check_gradient(self.gradient, self.residual, self.rotation_block)

    @override
    def results(self) -> list[Tensor]:
        return [self.gradient.new_empty(blocks_of(self.gradient.numel(), self.rotation_block), dtype=torch.float32)]

    @override
    def on_host(self, outputs: list[Tensor]) -> None:
        norms = outputs[0].numpy()
        _core.block_norms(gradient_view(self.gradient), _flat(self.residual), norms, rotation_block=self.rotation_block)
        _clear_sign(outputs[0])

    @override
    def on_device(self, outputs: list[Tensor], kernels: Any) -> None:
        kernels.block_norms(self.gradient, self.residual, outputs[0], rotation_block=self.rotation_block)
        _clear_sign(outputs[0])


@dataclass(frozen=True, eq=False)
class Encode(Operator):
    """Gradient to codes."""

    schema = (
        "encode(Tensor gradient, Tensor(a!)? residual, Tensor norms, Tensor max_norms, Tensor[] table, Tensor key,"
        " float threshold, SymInt rotation_block) -> (Tensor, Tensor, Tensor)"
    )
    mutates = ("residual",)
    gradient: Tensor
    residual: Tensor | None
    norms: Tensor
    max_norms: Tensor
    table: list[Tensor]
    key: Tensor
    threshold: float
    rotation_block: int

    @override
    def check(self) -> None:
        check_gradient(self.gradient, self.residual, self.rotation_block)
        check_norms(self.norms, self.max_norms, blocks_of(self.gradient.numel(), self.rotation_block))
        check_table(self.table, self.threshold)
        check_key(self.key)

    @override
    def results(self) -> list[Tensor]:
        codes = packed_bytes(padded_of(self.gradient.numel()), code_bits_of(self.table))
        return [
            self.gradient.new_empty(codes, dtype=torch.uint8),
            self.gradient.new_empty(1, dtype=torch.int32),
            self.gradient.new_empty(1, dtype=torch.int64),
        ]

    @override
    def on_host(self, outputs: list[Tensor]) -> None:
        codes, kept, clamped = outputs
        kept.fill_((torch.stack([self.norms, self.max_norms]) <= LARGEST_NORM).all())
        words, (domain, phase) = host_key(self.key)
        number = _core.encode(
            gradient_view(self.gradient), _flat(self.residual), self.max_norms.numpy(), codes.numpy(),
            rotation_block=self.rotation_block, values=_values(self.table), bits=code_bits_of(self.table),
            threshold=self.threshold, domain=domain, phase=phase,
            keep_error=self.residual is not None and bool(kept), **words,
        )  # fmt: skip
        clamped.fill_(number)

    @override
    def on_device(self, outputs: list[Tensor], kernels: Any) -> None:
        codes, kept, clamped = outputs
        table = _for_device(self.table, self.threshold)
        ranges = self.gradient.new_empty(self.norms.numel(), 4, dtype=torch.float32)
        energy = self.gradient.new_empty(1, dtype=torch.float64)
        kernels.clamp_ranges(self.norms, self.max_norms, ranges, kept, clamped, energy, table=table)
        kernels.encode(
            self.gradient, self.residual, ranges, codes, kept, clamped, rotation_block=self.rotation_block, table=table,
            key=self.key, keep_error=self.residual is not None,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class LookupSum(Operator):
    """Codes to sums."""

    schema = "lookup_sum(Tensor codes, Tensor[] table, SymInt value_bits) -> Tensor"
    codes: Tensor
    table: list[Tensor]
    value_bits: int

    @override
    def check(self) -> None:
        check_table(self.table, 1.0)
        require_tensor("codes", self.codes, [torch.uint8])
        if self.codes.dim() != 2:
            raise InputError(f"codes must be uint8[workers, bytes], not of shape {list(self.codes.shape)}")
        granularity, workers = self.table[2].numel() - 1, self.codes.shape[0]
        if self.value_bits not in (8, 16):
            raise InputError(f"value_bits must be 8 or 16, not {self.value_bits}")
        if granularity * workers >> self.value_bits:
            raise InputError(f"sums of {workers} workers' values up to {granularity} do not fit {self.value_bits} bits")

    @override
    def results(self) -> list[Tensor]:
        count = self.codes.shape[1] * 8 // code_bits_of(self.table)
        return [self.codes.new_empty(count, dtype=torch.uint8 if self.value_bits == 8 else torch.uint16)]

    @override
    def on_host(self, outputs: list[Tensor]) -> None:
        sums, values, bits = outputs[0].zero_().numpy(), _values(self.table), code_bits_of(self.table)
        for worker in self.codes.numpy():
            _core.lookup_sum(worker, values, sums, bits=bits, add=True)

    @override
    def on_device(self, outputs: list[Tensor], kernels: Any) -> None:
        table = _for_device(self.table, 1.0)
        if outputs[0].numel():
            kernels.lookup_sum(self.codes, outputs[0], table=table)


@dataclass(frozen=True, eq=False)
class Decode(Operator):
    """Sums to average gradient."""

    schema = (
        "decode(Tensor aggregate, Tensor max_norms, Tensor[] table, Tensor key, SymInt coordinates, SymInt workers,"
        " float threshold, SymInt rotation_block, ScalarType dtype) -> Tensor"
    )
    aggregate: Tensor
    max_norms: Tensor
    table: list[Tensor]
    key: Tensor
    coordinates: int
    workers: int
    threshold: float
    rotation_block: int
    dtype: torch.dtype

    @override
    def check(self) -> None:
        if self.coordinates < 0 or not 1 <= self.workers <= MAX_RANKS:
            raise InputError(
                f"decode takes 1 to {MAX_RANKS} workers and 0 coordinates or more, not {self.workers} and "
                f"{self.coordinates}"
            )
        require_tensor("aggregate", self.aggregate, _SUMS, padded_of(self.coordinates))
        check_norms(self.max_norms, self.max_norms, blocks_of(self.coordinates, self.rotation_block))
        check_table(self.table, self.threshold)
        check_key(self.key)

    @override
    def results(self) -> list[Tensor]:
        return [self.aggregate.new_empty(self.coordinates, dtype=self.dtype)]

    @override
    def on_host(self, outputs: list[Tensor]) -> None:
        _core.decode(
            self.aggregate.view(-1).numpy(), everybody(self.workers), self.max_norms.numpy(), gradient_view(outputs[0]),
            coordinates=self.coordinates, codes_per_chunk=self._chunk, rotation_block=self.rotation_block,
            granularity=self.table[2].numel() - 1, threshold=self.threshold, **host_key(self.key)[0],
        )  # fmt: skip

    @override
    def on_device(self, outputs: list[Tensor], kernels: Any) -> None:
        table = _for_device(self.table, self.threshold)
        dtype = torch.from_numpy(everybody(self.workers)).dtype
        # Filled and not copied: a CUDA graph may record it.
        contributions = torch.full((1,), self.workers, dtype=dtype, device=self.aggregate.device)
        kernels.decode(
            self.aggregate.view(-1), contributions, self.max_norms, outputs[0], codes_per_chunk=self._chunk,
            rotation_block=self.rotation_block, granularity=table.granularity, threshold=table.threshold, key=self.key,
        )  # fmt: skip

    @property
    def _chunk(self) -> int:
        return max(padded_of(self.coordinates), MIN_CODES_PER_PACKET)


def _flat(residual: Tensor | None) -> Any:
    return None if residual is None else residual_of_tensor(residual).reshape(-1)


def _values(table: list[Tensor]) -> Any:
    return table[0].numpy().astype(np.uint16)


def _for_device(table: list[Tensor], threshold: float) -> DeviceTable:
    return device_table(table, float(np.float32(threshold)))


def _clear_sign(norms: Tensor) -> None:
    """Remove the sign that a NaN may have: as an integer, NaN is the largest then."""
    norms.view(torch.int32).bitwise_and_(0x7FFFFFFF)


OPERATORS: tuple[type[Operator], ...] = (BlockNorms, Encode, LookupSum, Decode)

for _operator in OPERATORS:
    register(_operator)
