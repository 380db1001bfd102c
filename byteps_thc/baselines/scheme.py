"""Baselines as what an engine compresses with: a piece is a whole gradient, in one delivery or several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc.baselines.codec import EncodeContext
from byteps_thc.baselines.config import BaselineConfig, CodecConfig
from byteps_thc.baselines.delivery import CodecDelivery, Delivery, DenseDelivery, UncompressedDelivery
from byteps_thc.baselines.dense import DenseConfig
from byteps_thc.baselines.memory import Memory, NoMemory
from byteps_thc.baselines.packed_parameters import PackedParameters
from byteps_thc.baselines.row_delivery import CodecRows, DenseRows, RowCodes
from byteps_thc.pipeline.buffers import ParameterSlice
from byteps_thc.pipeline.figures import Figures
from byteps_thc.pipeline.layout import Layout
from byteps_thc.pipeline.piece import Piece, PlacedPiece, Round
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.scheme import Scheme
from byteps_thc.pipeline.statistics import StatsRecorder
from byteps_thc.pipeline.work_clock import WorkClock
from byteps_thc.transport.communicator import Communicator, Waitable

#: Makes the deliveries of a gradient.
Deliver = Callable[[Tensor, EncodeContext], Sequence[Delivery]]


class BaselineFigures(Figures):
    """Times; what codecs do they report themselves."""

    def __init__(self, recorder: StatsRecorder, clock: WorkClock) -> None:
        self._recorder, self._clock = recorder, clock

    @contextmanager
    def working(self, figure: Literal["encode_ms", "decode_ms"]) -> Iterator[None]:
        """See PieceTools."""
        with self._clock.working():
            start = perf_counter()
            yield
            self.add_time(**{figure: (perf_counter() - start) * 1e3})

    @override
    def start_step(self) -> None:
        pass

    @override
    def read(self) -> None:
        pass

    @override
    def add_time(self, *, encode_ms: float = 0.0, communicate_ms: float = 0.0, decode_ms: float = 0.0) -> None:
        self._recorder.add_time(encode_ms=encode_ms, communicate_ms=communicate_ms, decode_ms=decode_ms)


class BaselinePiece(Piece):
    """A whole gradient in one round. deliver: makes its deliveries. communicator: None: nobody else averages."""

    def __init__(
        self,
        deliver: Deliver,
        context: EncodeContext,
        communicator: Communicator | None,
        recorder: StatsRecorder,
        figures: BaselineFigures,
    ) -> None:
        self._deliver, self._context, self._communicator = deliver, context, communicator
        self._recorder, self._figures = recorder, figures
        self._gradient: Tensor | None = None
        self._deliveries: Sequence[Delivery] = ()
        self._collectives: list[Waitable] = []

    @override
    def measure(self, gradient: Sequence[Tensor], round: int) -> None:
        # The rows of a gradient follow each other in memory.
        first = gradient[0]
        self._gradient = first.as_strided((len(gradient) * first.numel(),), (1,))

    @override
    @torch.no_grad()
    def encode(self) -> None:
        assert self._gradient is not None
        with self._figures.working("encode_ms"):
            self._deliveries = self._deliver(self._gradient, self._context)
            self._gradient = None
            for delivery in self._deliveries:
                delivery.encode()
                if self._communicator is not None:
                    self._collectives.append(delivery.send(self._communicator, self._recorder))

    @override
    def sum(self) -> None:
        pass  # nobody can add payloads

    @override
    @torch.no_grad()
    def decode(self, out: Tensor) -> None:
        for collective in self._collectives:
            collective.wait()
        with self._figures.working("decode_ms"):
            for delivery in self._deliveries:
                delivery.decode(out, self._recorder)


class BaselineScheme(Scheme):
    """One of the baselines; a codec's payloads, or numbers of another type.

    communicator: for deliveries alone; None: nobody else averages. flags: for what decoding finds out in a
    reduce-scatter.
    """

    measures_residuals = True

    def __init__(
        self,
        config: BaselineConfig,
        policy: CompressionPolicy,
        *,
        worker: int,
        workers: int,
        communicator: Communicator | None,
        flags: Communicator | None,
        recorder: StatsRecorder,
        figures: BaselineFigures,
    ) -> None:
        self._dtype = config.dtype if isinstance(config, DenseConfig) else None
        self._codec = config.codec() if isinstance(config, CodecConfig) else None
        self.memory: Memory = config.memory(workers) if isinstance(config, CodecConfig) else NoMemory()
        self._policy, self._worker, self._workers = policy, worker, workers
        self._communicator, self._flags = communicator, flags
        self._recorder, self._figures = recorder, figures
        self.compresses = workers > 1 and (self._codec is not None or self._dtype is not None)

    @override
    def use_loss_scale(self, scale: float) -> None:
        pass  # questions compare it

    @override
    def prepare(self, layout: Layout) -> None:
        if self._codec is not None:
            for kind, store in self.memory.stores.items():
                store.require_fitting(kind, layout.parameters)
        sharded = layout.extent.sharded
        layout.pieces_carry_all = not sharded or self._codec is None
        makers = {compress: self._maker(layout, compress) for compress in (False, True)}

        def pieces(round: Round) -> Iterator[PlacedPiece]:
            context = EncodeContext(self._worker, round.number, round.step - self._policy.warmup_steps)
            deliver = makers[round.compress]
            piece = BaselinePiece(deliver, context, self._communicator, self._recorder, self._figures)
            yield PlacedPiece(piece, slice(0, layout.columns), last=True)

        layout.pieces = pieces

    @override
    def close(self) -> None:
        pass

    def _maker(self, layout: Layout, compress: bool) -> Deliver:
        codec, workers = self._codec, self._workers
        if layout.extent.sharded:
            if codec is None:
                narrow = self._dtype or torch.float32  # None: nothing comes here
                return lambda gradient, _: [DenseRows(gradient, narrow, workers)]
            rows = RowCodes.of(layout, codec, self._worker)
            flags = self._flags
            assert flags is not None
            return lambda gradient, context: [CodecRows(gradient, rows, self.memory, context, flags)]
        if codec is None or not layout.parameters:  # of unknown parameters nothing can be kept
            dtype = self._dtype if compress and codec is None else None
            return lambda gradient, _: [DenseDelivery(gradient, dtype, workers)]
        packed = self._packed(layout, compress)
        return lambda gradient, context: [
            CodecDelivery(gradient, parameters, codec, self.memory, context, workers)
            if compressed
            else UncompressedDelivery(gradient, parameters, self.memory, workers)
            for parameters, compressed in packed
        ]

    def _packed(self, layout: Layout, compress: bool) -> list[tuple[PackedParameters, bool]]:
        """Return the parameters, together with those that are also compressed or not."""
        groups: dict[bool, list[ParameterSlice]] = {True: [], False: []}
        for parameter in layout.parameters:
            if parameter.size:
                exact = not compress or self._policy.travels_exactly(parameter.name, parameter.size)
                groups[not exact].append(parameter)
        return [
            (PackedParameters(f"{layout.key}/{compress}/{compressed}", parameters), compressed)
            for compressed, parameters in groups.items()
            if parameters
        ]
