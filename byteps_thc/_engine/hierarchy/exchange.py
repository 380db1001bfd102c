"""The engine of a mesh: within a node every rank first gets the average of its shard, later all averages."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from byteps_thc._base.errors import ThcError
from byteps_thc._engine.agreement import SAME_MODEL, Questions, RankAgreement
from byteps_thc._engine.device.choice import gpu_of
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice
from byteps_thc._engine.factory import Scheme, flat_engine, shared_settings
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._engine.hierarchy.engine import NodeEngine, NodeExchange, NodeLayout
from byteps_thc._engine.layout import check_buffer
from byteps_thc._engine.parameters import saturated
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.staging import SideStream, make_staging
from byteps_thc._engine.statistics import StatsRecorder
from byteps_thc._native import _core
from byteps_thc._net.communicator import Asking, Communicator
from byteps_thc._net.groups import Communicators
from byteps_thc._net.handshake import gather_by_rank, gather_in_levels, introduce, require_equal
from byteps_thc._net.mesh import MeshGroups
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._net.transport import TrafficRecorder
from byteps_thc._scheme.decoding.settings import RankCodes

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc._scheme.gpu.part_copies import PartCopies


def shard_elements(elements: int, rank: int, ranks: int) -> int:
    """Return the rank's number of elements: shards are equal, but the last ones may be short or empty."""
    columns = -(-elements // ranks)
    return min(max(elements - rank * columns, 0), columns)


class BucketShards(NodeLayout):
    """The shards of buffers of one layout. Raises InputError for an unsupported buffer.

    Buffers are cut parameter by parameter, as in FSDP: a rank has the same part of a parameter in every bucket, and its
    residual. matrix[ranks, columns] has a row for each rank of the fast dimension, padded with zeros. Gaps between
    parameters have no shard. shard: this rank's row as a buffer, float32, while it is averaged over the slow dimension.
    cut: a text that identifies the matrix. device: where shards are exchanged. recorder: counts copies to the host.
    fused: a kernel copies all parts on a device. digest: a text of the last average's bits.
    """

    def __init__(
        self,
        buffer: GradientBuffer,
        rank: int,
        ranks: int,
        device: torch.device,
        recorder: TrafficRecorder,
        *,
        fused: bool = False,
    ) -> None:
        check_buffer(buffer)
        gradient = buffer.gradient
        super().__init__(buffer, make_staging(gradient, SideStream(device), recorder) if device.type == "cpu" else None)
        self.size, self.parameters = gradient.numel(), buffer.parameters
        self.ranks = ranks
        self._columns = [-(-part.size // ranks) for part in self.parameters]
        self.columns = sum(self._columns)
        self.cut = f"shards {zlib.crc32(repr([*self.row_parts()]).encode()):08x}"
        self.digest = "none"
        self.padded = ranks * self.columns != sum(part.size for part in self.parameters)
        self.shard = GradientBuffer(
            f"{buffer.key}, shard {rank} of {ranks}",
            torch.zeros(self.columns, device=device),
            tuple(self._own_slices(rank)),
            buffer.drops_unused,
        )
        self._copies = _copies_on_device([*self.row_parts()], device) if fused and device.type != "cpu" else None

    def row_parts(self) -> Iterator[tuple[int, int]]:
        """Yield the parts of the matrix, row by row: first element in the gradient, -1 for padding; elements."""
        for row in range(self.ranks):
            for part, columns in zip(self.parameters, self._columns, strict=True):
                elements = shard_elements(part.size, row, self.ranks)
                if elements:
                    yield part.start + row * columns, elements
                if elements < columns:
                    yield -1, columns - elements

    def fill(self, matrix: Tensor, gradient: Tensor) -> None:
        if self._copies is not None:
            self._copies.pack(gradient, matrix.view(-1))
            return
        if self.padded:
            matrix.zero_()
        for part, place in self._places(gradient, matrix):
            place.copy_(part)

    def take(self, matrix: Tensor, gradient: Tensor) -> None:
        """Overwrite the parameters in a gradient by matrix[ranks, columns]."""
        if self._copies is not None:
            self._copies.unpack(matrix.view(-1), gradient)
            return
        for part, place in self._places(gradient, matrix):
            part.copy_(place)

    def _own_slices(self, rank: int) -> Iterator[ParameterSlice]:
        start = 0
        for part, columns in zip(self.parameters, self._columns, strict=True):
            if elements := shard_elements(part.size, rank, self.ranks):
                skipped = (part.skipped + rank * columns) % part.row if part.row else 0
                yield ParameterSlice(part.name, start, start + elements, part.row, skipped)
            start += columns

    def _places(self, gradient: Tensor, matrix: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield parts of the gradient with their places in the matrix, of the same shape."""
        start = 0
        for part, columns in zip(self.parameters, self._columns, strict=True):
            if part.size:
                full, rest = divmod(part.size, columns)  # rows without padding, elements of the next row
                end = part.stop - rest
                yield gradient[part.start : end].view(full, columns), matrix[:full, start : start + columns]
                if rest:
                    yield gradient[end : part.stop], matrix[full, start : start + rest]
            start += columns


class ShardExchange(NodeExchange[BucketShards]):
    """Reduce-scatter and all-gather of gradients among the ranks of a node, exact but for the gradient's own type.

    scatter, gather: communicators of the fast dimension, for tensors on `device`: two, for two threads or streams. A
    reduce-scatter is an all-to-all and a sum in float32, in the order of the ranks: gloo has no other, and NCCL's would
    round bfloat16 at every rank. questions: asked before shards are summed, in_stream: once per layout. fused: see
    BucketShards.
    """

    def __init__(
        self,
        groups: MeshGroups,
        scatter: Communicator,
        gather: Communicator,
        questions: Questions,
        device: torch.device,
        *,
        in_stream: bool = False,
        fused: bool = False,
    ) -> None:
        self.size, self.rank, self.device = groups.size, groups.rank, device
        self.in_stream, self._fused = in_stream, fused
        self._fast = groups.fast
        self._scatter, self._gather, self._questions = scatter, gather, questions
        self._sent, self._received, self._gathered = _Memory(), _Memory(), _Memory()

    @override
    def layout(self, buffer: GradientBuffer, recorder: StatsRecorder) -> BucketShards:
        rank, ranks = self._fast.rank(), self._fast.size()
        return BucketShards(buffer, rank, ranks, self.device, recorder, fused=self._fused)

    @override
    def use_loss_scale(self, scale: float) -> None:
        self._questions.use_loss_scale(scale)

    @override
    def scatter(self, layout: BucketShards, buffer: GradientBuffer, round: int, *, new: bool) -> GradientBuffer:
        if new or not self.in_stream:
            facts = f"{layout.size} elements of {buffer.gradient.dtype}", layout.cut, f"round {round}"
            last = f"last average {layout.digest}"
            self._questions.require_same(layout.contents, layout.size, round, *facts, last)
        self._average(layout, buffer.gradient)
        return layout.shard

    @override
    def gather(self, layout: BucketShards, gradient: Tensor) -> None:
        gathered = self._gathered.matrix(layout, gradient)
        shard = layout.shard.gradient
        if shard.is_cuda:  # its layout may end before this stream gets here
            shard.record_stream(torch.cuda.current_stream(shard.device))
        own = saturated(shard, gradient.dtype)
        self._gather.all_gather(_bytes(gathered), _bytes(own)).wait()
        if not self.in_stream:
            layout.digest = _digest(gathered)
        layout.take(gathered, gradient)

    def _average(self, layout: BucketShards, gradient: Tensor) -> None:
        sent, received = self._sent.matrix(layout, gradient), self._received.matrix(layout, gradient)
        layout.fill(sent, gradient)
        self._scatter.all_to_all(_bytes(received), _bytes(sent)).wait()
        average = layout.shard.gradient
        _sum(received, average)
        # A tensor: torch multiplies by the inverse of a number on a GPU, with other bits.
        average.div_(torch.full((), float(layout.ranks), device=average.device))


class _Memory:
    """Memory that buffers use in turn, as large as the largest."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8, device="cpu")

    def matrix(self, shards: BucketShards, like: Tensor) -> Tensor:
        size = shards.ranks * shards.columns * like.element_size()
        if self._bytes.numel() < size or self._bytes.device != like.device:
            self._bytes = torch.empty(size, dtype=torch.uint8, device=like.device)
        return self._bytes[:size].view(like.dtype).view(shards.ranks, shards.columns)


def _sum(rows: Tensor, out: Tensor) -> None:
    if rows.is_cuda:
        torch.sum(rows, 0, dtype=torch.float32, out=out)
        return
    out.copy_(rows[0])  # torch.sum takes three times as long on the CPU if the rows have another type
    for row in rows[1:]:
        out.add_(row)


def _digest(average: Tensor) -> str:
    if average.numel() and average.amax().isnan():  # its bits depend on the processor
        return "NaN"
    return f"{_core.checksum(_bytes(average).numpy()):08x}"


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


def _copies_on_device(parts: Sequence[tuple[int, int]], device: torch.device) -> "PartCopies":
    from byteps_thc._scheme.gpu.part_copies import PartCopies  # needs Triton

    return PartCopies(parts, device)


_CPU = torch.device("cpu")
#: Communicators of the fast level, and of the slow one.
LevelCommunicators = tuple[Communicators, Communicators]


def level_communicators(groups: MeshGroups, policy: CompressionPolicy, *, callers: int = 0) -> LevelCommunicators:
    fast, slow = (Communicators(group, policy.deadline_s, callers=callers) for group in (groups.fast, groups.slow))
    return fast, slow


def network_of_shard(network: NetworkConfig, shards: dist.ProcessGroup) -> NetworkConfig:
    """Return the servers of this rank's shard: each shard is a job of its own."""
    return replace(network, job=network.job + shards.rank())


def hierarchical_engine(
    groups: MeshGroups,
    scheme: Scheme,
    policy: CompressionPolicy,
    gradients_on: torch.device | None = None,
    communicators: LevelCommunicators | None = None,
) -> NodeEngine[BucketShards]:
    """Return an engine for two levels: exact averages in the fast one, compressed ones over the slow one; collective.

    With servers, shard s of a node, from 0, has the job network.job + s. If averages may be complete without some
    nodes, nodes are not asked about their gradients. communicators: new ones of the levels; None: the engine's own.
    Other arguments and errors: flat_engine's.
    """
    fast, slow = communicators or level_communicators(groups, policy)
    nodes = groups.slow.size()
    waits_for_all = isinstance(scheme, RankCodes) or not scheme.may_drift(nodes)
    gather = gather_in_levels(fast.for_questions().gather, slow.for_questions().gather)
    settings: dict[str, object] = {"engine": f"mesh of {nodes} x {groups.fast.size()}"}
    settings |= {"network": isinstance(scheme, NetworkConfig)} | shared_settings(scheme, nodes)
    gpu = gpu_of(groups.fast, gradients_on)
    if isinstance(scheme, NetworkConfig):
        gradients_on = _CPU  # in two levels, only the host has kernels for servers
        scheme = network_of_shard(scheme, groups.fast)
    # The inner engine knows only the ranks of its shard, and would use the whole host for them.
    threads = policy.thread_count(introduce(gather, settings | policy.shared_settings()).ranks_on_this_host)
    inner_policy = policy.model_copy(update={"threads": threads})
    inner, refusal, difference, places = None, None, None, set[str]()
    try:
        inner = flat_engine(groups.slow, scheme, inner_policy, gradients_on)
        gpu = inner.device if inner.in_stream else gpu
        place = "host" if gpu is None else "GPU"
    except Exception as error:  # Triton's errors have no other base
        refusal, place = error, str(error)  # sent to the others, which wait for this rank
    try:
        everyone = gather_by_rank(gather, place)
        places = {*everyone.values()}
        if places - {"host", "GPU"}:
            require_equal({rank: {"kernels": theirs} for rank, theirs in everyone.items()})
    except ThcError as error:
        difference = error
    if inner is None:
        assert refusal is not None
        raise refusal
    if difference is not None:
        inner.close()  # all have theirs by now: nobody waits for the end of a connection
        raise difference

    def leave() -> None:
        fast.close()
        slow.close()

    # Shards of all ranks are in the same kind of memory.
    exchange = _exchange(groups, fast, slow, gpu if places == {"GPU"} else None, inner, waits_for_all=waits_for_all)
    watch = None
    if exchange.in_stream:
        watch = Communicators(groups.fast.whole, policy.deadline_s).watch(SAME_MODEL, fast, slow)
    return NodeEngine(inner, exchange, inner.recorder, watch, leave)


def _exchange(
    groups: MeshGroups,
    fast: Communicators,
    slow: Communicators,
    gpu: torch.device | None,
    inner: FlatEngine,
    *,
    waits_for_all: bool,
) -> ShardExchange:
    scatter: Communicator
    gathering: Communicator
    asked: list[Asking]
    if gpu is None:
        scatter, gathering = fast.of_host(2)
        asked = [scatter, *(slow.of_host(1) if waits_for_all else ())]
    else:
        scatter, gathering = fast.of_device(), fast.of_device()
        # Asked once per layout, in the caller's thread: no gloo connections are needed.
        asked = [level.for_questions() for level in ((fast, slow) if waits_for_all else (fast,))]
    ranks = groups.fast.size(), groups.slow.size()
    questions, in_stream = RankAgreement(*zip(asked, ranks, strict=False)), gpu is not None
    return ShardExchange(groups, scatter, gathering, questions, gpu or _CPU, in_stream=in_stream, fused=inner.in_stream)
