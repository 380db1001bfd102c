"""Compares a device's kernels with the host's kernels, bit by bit, before an engine among ranks uses them.

One process plays several ranks with the engines' own pieces, a stage after the other. Messages and averages must be the
same.
"""

import itertools
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc._base.errors import DeadlineError
from byteps_thc._engine.agreement import Contents, DeviceAgreement, Questions
from byteps_thc._engine.decoding.device_piece import DevicePiece, DeviceTools, batch_of
from byteps_thc._engine.decoding.gather_codes import GATHER_ROUND, HostCodes, gather_plan
from byteps_thc._engine.decoding.piece import RankPiece, RankTools
from byteps_thc._engine.decoding.plan import PiecePlan, piece_plans
from byteps_thc._engine.engine import ParameterSlice, ShardMatrix
from byteps_thc._engine.fingerprint import Fingerprints
from byteps_thc._engine.layout import Extent, Layout, Spans
from byteps_thc._engine.parameters import DTYPES
from byteps_thc._engine.piece import Piece
from byteps_thc._engine.staging import Mark, SideStream
from byteps_thc._engine.statistics import StatsRecorder, WorkClock
from byteps_thc._net.communicator import Communicator, Waitable
from byteps_thc._net.rank_messages import RankMessages
from byteps_thc._net.transport import PlainCollective
from byteps_thc._scheme.block_plan import BLOCK
from byteps_thc._scheme.decoding.codec import HEADER_BYTES, RankCodec
from byteps_thc._scheme.decoding.settings import RankCodes, ResolvedRankCodes

_CPU = torch.device("cpu")
_RANKS, _ROUND = 3, 2_900_000_000
#: The gradients' tensors, with whole tiles and odd ends, and columns that travel exactly.
_COLUMNS, _ENDS, _EXACT = 12_011, (70, 214, 1030, 1031, 5127), ((3, 30), (2400, 2450))
#: Values that travel exactly: subnormal, -0, the largest float16 and beyond, sums that overflow.
_EXACT_VALUES = (1e-40, -0.0, 65_504.0, 65_520.0, 3e38, np.nan, -np.inf)
_LONG_S, _DEADLINE_S = 5.0, 60.0
_LONGEST_TEXT = 300

_logger = logging.getLogger("byteps_thc")


def fault_of(device: torch.device, codes: RankCodes, *, sharded: bool = False, gathers: bool = False) -> str | None:
    """Return the reason why engines cannot use a device's kernels, None if all bits are the host's.

    sharded: for a reduce-scatter. gathers: for gathers of parameters instead. Raises DeadlineError if the device does
    not finish, and torch's RuntimeError if the device fails.
    """
    ranks, sharded = (1, True) if gathers else (_RANKS, sharded)  # gathers average nothing
    settings, began_s = codes.resolve(ranks, sharded=sharded), time.perf_counter()
    with SideStream(device).current():
        try:
            kernels = (_different(device, settings, dtype) for dtype in DTYPES)
            reason = next((kernel for kernel in kernels if kernel is not None), None)
        except DeadlineError:
            raise
        except Exception as error:  # Triton's errors have no other base
            finish(device)  # raises the device's own error
            text = " ".join(str(error).split())[:_LONGEST_TEXT]
            reason = f"the GPU's kernels do not run ({type(error).__name__}: {text}): update Triton, and install gcc"
    took_s = time.perf_counter() - began_s
    if took_s > _LONG_S:
        _logger.info("compiling and comparing the GPU's kernels took %.0f s, once: Triton caches kernels", took_s)
    return reason


def _different(device: torch.device, settings: ResolvedRankCodes, dtype: torch.dtype) -> str | None:
    layout = layout_of(_COLUMNS, _ENDS, _EXACT, dtype, ranks=_RANKS if settings.down_bits is None else None)
    gradients = [_gradient(layout, rank) for rank in range(_RANKS)]
    compare = different_gather if settings.ranks == 1 else different_kernel
    kernel = compare(layout, settings, device, gradients)
    found = f"the GPU's {kernel} kernel has other bits than the host's for {str(dtype).removeprefix('torch.')}"
    return None if kernel is None else f"{found}: update Triton and the GPU's driver"


def layout_of(
    columns: int, ends: Iterable[int], exact: Spans, dtype: torch.dtype, *, ranks: int | None = None, padding: int = 0
) -> Layout:
    """Return the layout of a gradient.

    columns: elements of a row. ends: of tensors. exact: columns that travel exactly. ranks: rows of a reduce-scatter;
    None: an all-reduce. padding: columns that the last row lacks.
    """
    edges = sorted({0, columns, *ends, *itertools.chain(*exact)})
    tensors = [edge for edge in itertools.pairwise(edges) if not any(a <= edge[0] < b for a, b in exact)]
    rows = ranks or 1
    extent = Extent("self-check", rows, columns, sharded=ranks is not None, label="self-check")
    cleared = [(rows * columns - padding, rows * columns)]
    places: dict[str, Any] = {"tensors": tensors, "exact": exact, "cleared": cleared, "compressed": columns}
    return Layout(extent, Contents("self-check", ()), (), **places, dtype=dtype, staging=None)


def _gradient(layout: Layout, rank: int) -> Tensor:
    """Return a gradient with blocks of very different size, zeros, and single values that are not finite."""
    limits, size = torch.finfo(layout.dtype), layout.size
    of_tiles = np.repeat([1, 2**-9, limits.tiny * 4, limits.tiny / 4, limits.max / 2**14], 700)
    of_blocks = np.repeat([1, 1, 0, 1, 1e-3, 1e3, 1], BLOCK)
    x = np.random.default_rng(rank).standard_normal(size) * np.resize(of_tiles, size) * np.resize(of_blocks, size)
    x[-100 - rank], x[-3000] = np.nan, np.inf
    for start, stop in layout.exact:
        x.reshape(layout.rows, -1)[:, start:stop] = np.resize(_EXACT_VALUES, stop - start)
    return torch.from_numpy(x.astype(np.float32)).to(layout.dtype)


def different_kernel(
    layout: Layout, settings: ResolvedRankCodes, device: torch.device, gradients: Sequence[Tensor], offset: int = 1
) -> str | None:
    """Return the first of encode, recode and decode (of rows: encode, average) with other bits on a device, or None.

    settings: of the ranks. gradients: contiguous host tensors, one for each rank; averages overwrite them. offset:
    elements by which every second rank's gradient is misaligned on the device.
    """
    [plan] = piece_plans(layout, settings, whole=True)
    on_device = []
    for rank, gradient in enumerate(gradients):
        late = offset * (rank % 2)
        on_device.append(torch.empty(layout.size + late, dtype=layout.dtype, device=device)[late:].copy_(gradient))
    host, gpu = (_Ranks(plan, settings, layout, where) for where in (_CPU, device))
    wanted = host.play(map(host.host_piece, range(settings.ranks)), gradients)
    got = gpu.play(map(gpu.device_piece, range(settings.ranks)), on_device)
    finish(device)
    compared = zip(wanted, got, strict=True)
    return next((kernel for (kernel, right), (_, mine) in compared if not _same(mine, right)), None)


def different_gather(
    layout: Layout, settings: ResolvedRankCodes, device: torch.device, gradients: Sequence[Tensor], offset: int = 1
) -> str | None:
    """Return the first of a gather's encode and decode with other bits on a device, or None.

    gradients: one for each rank, whose first row is the rank's shard. Others: as different_kernel's.
    """
    from byteps_thc._scheme.decoding.gpu.block_batch import GatherBatch

    ranks, columns = layout.rows, layout.columns
    last = layout.size - sum(stop - start for start, stop in layout.cleared)
    compressed = tuple(
        ParameterSlice(f"{start}", row + start, end)
        for row in range(0, layout.size, columns)
        for start, stop in layout.tensors
        if row + start < (end := min(row + stop, last))
    )
    plan = gather_plan(ShardMatrix("self-check", ranks, columns, compressed, tuple(layout.exact)), settings.codes.bits)
    messages = torch.zeros(ranks, plan.message.size_bytes, dtype=torch.uint8, device="cpu")
    on_device = torch.zeros_like(messages, device=device)
    for rank, gradient in enumerate(gradients):
        shard, late = gradient[:columns], offset * (rank % 2)
        host = HostCodes(plan, rank, RankCodec(settings, 0))
        host.encode(shard, messages[rank])
        gpu = GatherBatch(plan, rank, settings, round=GATHER_ROUND, device=device)
        there = torch.empty(columns + late, dtype=layout.dtype, device=device)[late:].copy_(shard)
        gpu.encode(there, on_device[rank])
    wanted, got = (torch.ones(layout.size, dtype=layout.dtype, device=where) for where in (_CPU, device))
    host.decode(messages, wanted)
    gpu.decode(on_device, got)
    finish(device)
    words = (on_device[:, HEADER_BYTES:].view(torch.float32), messages[:, HEADER_BYTES:].view(torch.float32))
    compared = {"gather's encode": words, "gather's decode": (got, wanted)}
    return next((kernel for kernel, (mine, right) in compared.items() if not _same(mine, right)), None)


class _Ranks(RankMessages, Waitable):
    """All ranks in one process, and the messages among them."""

    def __init__(self, plan: PiecePlan, settings: ResolvedRankCodes, layout: Layout, device: torch.device) -> None:
        self.ranks, self._plan, self._settings, self._layout = settings.ranks, plan, settings, layout
        self._device, self._sent = device, list[tuple[Tensor, Tensor]]()
        self._prints = Fingerprints(settings.identity, 0)
        self._figures = StatsRecorder(PlainCollective.among_ranks(settings.ranks, sharded=plan.sharded))

    def host_piece(self, rank: int) -> Piece:
        codec = RankCodec(self._settings, rank)
        tools = RankTools(codec, self, self._prints, self._figures, WorkClock())
        return RankPiece(tools, self._plan)

    def device_piece(self, rank: int) -> Piece:
        agreement = DeviceAgreement(self._prints, self._device, cast(Communicator, None), Questions())  # asks nothing
        tools = DeviceTools(self._settings, rank, self, agreement, self._figures)
        batch = batch_of(tools, self._plan, self._layout.columns)
        return DevicePiece(tools, self._plan, batch, agreement.number(*self._plan.identity), Mark(self._device))

    def play(self, made: Iterable[Piece], gradients: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
        """Return the name of each kernel, and its message or average, in the order of the calls."""
        pieces = [*made]
        for piece, gradient in zip(pieces, gradients, strict=True):
            piece.measure(gradient.view(-1), _ROUND)
            piece.encode()
        self._deliver()
        for piece in pieces:
            piece.sum()
        self._deliver()  # of rows the same again
        averages = [gradient[: self._layout.columns] for gradient in gradients]
        for piece, average in zip(pieces, averages, strict=True):
            piece.decode(average)
        kernels = ("encode", "average") if self._plan.sharded else ("encode", "recode", "decode")
        messages = [sent[..., HEADER_BYTES:].view(torch.float32) for _, sent in self._sent]
        return [*zip((kernel for kernel in kernels for _ in pieces), [*messages, *averages], strict=True)]

    def _deliver(self) -> None:
        calls = self._sent[-self.ranks :]
        for rank, (receiver, _) in enumerate(calls):
            receiver.copy_(torch.stack([sent if sent.dim() == 1 else sent[rank] for _, sent in calls]))

    @override
    def take(self, size_bytes: int) -> Tensor:
        return torch.zeros(self.ranks, size_bytes, dtype=torch.uint8, device=self._device)

    @override
    def give_back(self, memory: Tensor) -> None:
        pass

    @override
    def all_to_all(self, received: Tensor, sent: Tensor) -> Waitable:
        self._sent.append((received, sent))
        return self

    @override
    def all_to_all_apart(self, received: Tensor, sent: Tensor, header_bytes: int) -> tuple[Waitable, Waitable]:
        return self.all_to_all(received, sent), self

    @override
    def all_gather(self, gathered: Tensor, own: Tensor) -> Waitable:
        return self.all_to_all(gathered, own)

    @override
    def wait(self) -> None:
        pass


def _same(mine: Tensor, right: Tensor) -> bool:
    """Return whether all bits are the same; a NaN may have any payload."""
    mine, word = mine.cpu(), torch.int32 if mine.element_size() > 2 else torch.int16
    return bool(((mine.view(word) == right.view(word)) | (mine.isnan() & right.isnan())).all())


def finish(device: torch.device, deadline_s: float = _DEADLINE_S) -> None:
    """Wait for the current stream of a device. Raises DeadlineError, and torch's RuntimeError if the device fails."""
    done = Mark(device)
    done.set()
    if not done.passes_within(deadline_s):
        raise DeadlineError(
            f"{device} did not finish the comparison of its kernels within {deadline_s:g} s: end other work on the "
            'GPU, or pass CompressionPolicy(kernels="host")'
        )
