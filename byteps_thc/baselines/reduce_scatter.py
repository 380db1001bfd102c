"""Baselines for sharded gradients: every rank gets the average of its own row of a ShardMatrix.

A rank encodes every row by itself and sends it to the rank that needs it (all-to-all); that one decodes the payloads
of all ranks and combines them. So a parameter's coordinates are selected, scaled or counted shard by shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from byteps_thc.baselines.codec import Codec, EncodeContext, VectorSpec
from byteps_thc.baselines.config import BaselineConfig, CodecConfig
from byteps_thc.baselines.delivery import is_finite
from byteps_thc.baselines.dense import DenseConfig
from byteps_thc.baselines.dgc import Dgc
from byteps_thc.baselines.memory import Memory, NoMemory
from byteps_thc.baselines.packed_parameters import PackedParameters
from byteps_thc.errors import ConfigurationError
from byteps_thc.pipeline.buffers import ParameterSlice
from byteps_thc.pipeline.engine_state import EngineState
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.row_engine import RowEngine, RowReduction
from byteps_thc.pipeline.shard_matrix import ShardMatrix
from byteps_thc.transport.groups import open_communicator
from byteps_thc.transport.handshake import require_same_settings


class BaselineReduceScatter(RowEngine):
    """The RowEngine of any baseline but Dgc.

    Dgc applies the optimizer's momentum to all gradients of a parameter, and those that travel uncompressed here (in
    warm-up steps, of unused parameters) are averaged by torch.
    """

    def __init__(self, process_group: dist.ProcessGroup, config: BaselineConfig, policy: CompressionPolicy) -> None:
        if isinstance(config, Dgc) or not isinstance(config, DenseConfig | CodecConfig):
            raise ConfigurationError(
                f"{type(config).__name__} does not work with FSDP2's reduce-scatter: use TopK, another baseline or a "
                "ThcConfig here, or DDP (byteps_thc.ddp.compress)"
            )
        workers, worker = process_group.size(), process_group.rank()
        communicator = open_communicator(process_group, policy.deadline_s)
        settings = config.shared_settings()
        require_same_settings(communicator, workers, {"engine": "reduce-scatter"} | settings | policy.shared_settings())
        self._dtype = config.dtype if isinstance(config, DenseConfig) else None
        self._codec = config.codec() if isinstance(config, CodecConfig) else None
        self._memory: Memory = config.memory(workers) if isinstance(config, CodecConfig) else NoMemory()
        self._rows: dict[str, _Rows] = {}
        state = EngineState(
            worker,
            workers,
            settings,
            wrap=torch.from_numpy,
            stores=self._memory.stores,
            rollback=self._memory.rollback,
        )
        super().__init__(policy, communicator, state, ("thc-reduce-scatter", self._reduce))

    @property
    @override
    def compressing(self) -> bool:
        """Whether gradients of the current step are compressed; one worker has nothing to send."""
        return super().compressing and self.workers > 1 and (self._codec is not None or self._dtype is not None)

    @override
    def _residual_of(self, matrix: ShardMatrix) -> Tensor | None:
        return None  # they are in the memory

    @torch.no_grad()
    def _reduce(self, reduction: RowReduction) -> Iterable[None]:
        if self._codec is not None:
            self._reduce_codes(self._codec, reduction)
        elif self._dtype is not None:
            self._reduce_dense(self._dtype, reduction.source, reduction.gradient)
        reduction.release_source()
        self._finish(reduction)
        return ()

    def _reduce_dense(self, dtype: torch.dtype, gradient: Tensor, output: Tensor) -> None:
        """As DenseDelivery: everything in one dtype, divided before it is added."""
        source = gradient.to(dtype).div_(self.workers)
        received = self._exchange(source.view(torch.uint8)).view(self.workers, -1).view(dtype)
        total = received[0]
        for row in received[1:]:
            total += row
        output.copy_(total)
        narrowed = source.element_size() < gradient.element_size()
        size = gradient.numel()
        self._recorder.add_gradient(compressed=size if narrowed else 0, uncompressed=0 if narrowed else size)

    def _reduce_codes(self, codec: Codec, reduction: RowReduction) -> None:
        start = perf_counter()
        matrix, gradient, output = reduction.matrix, reduction.source, reduction.gradient
        rows = self._rows.get(matrix.key)
        if rows is None:
            rows = self._rows[matrix.key] = _Rows.of(matrix, self.worker)
        self._start_exact(reduction)
        context = EncodeContext(self.worker, reduction.round, self._state.step - self.policy.warmup_steps)
        state = self._memory.compensate(rows.parameters.take(gradient), rows.parameters.spec, compressed=True)
        payloads = rows.encode(codec, state.vector, context)
        encoded = perf_counter()
        received = self._exchange(payloads.view(-1)).view_as(payloads)
        arrived = perf_counter()
        finite = rows.write_average(codec, received, output, context.step)
        residual = state.kept.get("residual")
        if self._all_finite(finite):
            self._memory.keep(state, rows.decode(codec, payloads, context.step))
        else:
            residual = None
            self._memory.rollback.request()
        self._finish_exact(reduction)
        self._recorder.add_gradient(compressed=rows.parameters.spec.size)
        self._recorder.add_quantization(
            coordinates=rows.parameters.spec.size,
            clamped=0,
            energy=float(torch.dot(state.vector, state.vector)),
            lost_energy=None if residual is None else float(torch.dot(residual, residual)),
        )
        self._recorder.add_time(
            encode_ms=(encoded - start) * 1e3,
            communicate_ms=(arrived - encoded) * 1e3,
            decode_ms=(perf_counter() - arrived) * 1e3,
        )

    def _exchange(self, source: Tensor) -> Tensor:
        """Return the parts that the ranks have for this one, one after another; uint8."""
        received = torch.empty_like(source)
        self._recorder.add_collective(source.nbytes, self.workers)
        self._communicator.all_to_all(received, source).wait()
        return received

    def _all_finite(self, finite: bool) -> bool:
        """Whether it is so on all ranks: each knows its own row's average only, and has residuals of all rows."""
        flag = torch.tensor([not finite], dtype=torch.int32)
        self._communicator.max_(flag).wait()
        return not flag.item()


@dataclass(frozen=True)
class _Rows:
    """What of a matrix is compressed.

    parameters: of all rows, one after another. specs: of every row; a row may be empty. own: this rank's parameters, in
    its row, which is number `worker`.
    """

    parameters: PackedParameters
    specs: tuple[VectorSpec, ...]
    own: PackedParameters
    worker: int

    @classmethod
    def of(cls, matrix: ShardMatrix, worker: int) -> _Rows:
        rows: list[list[ParameterSlice]] = [[] for _ in range(matrix.rows)]
        for part in matrix.compressed:
            row, start = divmod(part.start, matrix.columns)
            rows[row].append(ParameterSlice(part.name, start, start + part.size))
        specs = tuple(VectorSpec.packing(f"{matrix.key}[{row}]", parts) for row, parts in enumerate(rows))
        return cls(
            PackedParameters(matrix.key, matrix.compressed), specs, PackedParameters("own", rows[worker]), worker
        )

    def encode(self, codec: Codec, vector: Tensor, context: EncodeContext) -> Tensor:
        """Return the payload of every row, uint8[rows, bytes of the longest]."""
        sizes = self._payload_bytes(codec, context.step)
        payloads = torch.zeros(len(sizes), max(sizes), dtype=torch.uint8)
        parts = torch.split(vector, [spec.size for spec in self.specs])
        for payload, spec, part, size in zip(payloads, self.specs, parts, sizes, strict=True):
            if size:
                payload[:size] = codec.encode(part, spec, context)
        return payloads

    def decode(self, codec: Codec, payloads: Tensor, step: int) -> Tensor:
        """Return what the payloads of all rows say."""
        sizes = self._payload_bytes(codec, step)
        rows = zip(payloads, self.specs, sizes, strict=True)
        return torch.cat([codec.decode(payload[:size], spec, step) for payload, spec, size in rows if size])

    def write_average(self, codec: Codec, received: Tensor, output: Tensor, step: int) -> bool:
        """Write the average of the ranks' payloads, and zeros to padding; return whether it is finite."""
        output.zero_()
        size = self._payload_bytes(codec, step)[self.worker]
        if not size:
            return True
        spec = self.specs[self.worker]
        average = codec.combine([codec.decode(payload[:size], spec, step) for payload in received])
        self.own.put(average, output)
        return is_finite(average)

    def _payload_bytes(self, codec: Codec, step: int) -> list[int]:
        return [codec.payload_bytes(spec, step) if spec.size else 0 for spec in self.specs]
