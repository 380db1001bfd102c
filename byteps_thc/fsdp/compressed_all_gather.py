"""FSDP2's all-gather of parameters, compressed.

Each rank encodes its shard, and all ranks decode all shards, their own included: all compute with the same weights, bit
for bit. Optimizers keep exact shards, so errors do not add up over steps.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import override

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.limits import Bits
from byteps_thc._base.torch_private import NO_BACKWARD, current_backward, fsdp_all_gather
from byteps_thc._engine.decoding.gather_codes import GATHER_ROUND, HostCodes, gather_plan, module_hash
from byteps_thc._engine.device.choice import agree_on_kernels, device_of
from byteps_thc._engine.door import choose_policy
from byteps_thc._engine.parameters import DTYPES
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.statistics import CompressionStats, StatsRecorder
from byteps_thc._native import _core
from byteps_thc._net.groups import Communicators, refusals_told, world_ranks
from byteps_thc._net.handshake import introduce
from byteps_thc._net.transport import PlainCollective
from byteps_thc._scheme.decoding.codec import GatherPlan, RankCodec
from byteps_thc._scheme.decoding.settings import RankCodes, RankKeywords, ResolvedRankCodes
from byteps_thc.fsdp.backward import UnhookedGroups
from byteps_thc.fsdp.parameters import ParameterGroup, groups_of_mesh, parameter_groups, shard_matrix, with_embeddings

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc._scheme.decoding.gpu.block_batch import GatherBatch

#: A fine-tuned GPT's loss above fp32's was .003 % with 8 bits, .001 % with bf16, and .042 % with 6 bits (simulated).
DEFAULT_PARAMETER_BITS: Bits = 8


def compress_all_gather(
    model: nn.Module, *, policy: CompressionPolicy | None = None, **settings: Unpack[RankKeywords]
) -> "GatherCompression":
    """Compress the parameters that an FSDP2 model gathers; collective over its ranks.

        fully_shard(model)
        gathers = compress_all_gather(model, bits=8)

    model: a model after its last fully_shard(). A mesh may have two dimensions.
    settings: bits, 8 by default, and seed.
    policy: a CompressionPolicy, of which bypass_elements, exclude and rows select parameters; default: THC_POLICY, or
        its defaults.

    Raises ConfigurationError if gathers are compressed already, if ranks have different settings, or if parameters are
    on a GPU without usable kernels.
    """
    everyone = parameter_groups(model, replicated=True)
    groups = groups_of_mesh(everyone, _is_compressed)
    process_group = groups[0].process_group
    with refusals_told(process_group):
        codes, policy = one_way_codes(settings, "partition_bytes"), choose_policy(policy)
        chosen = gather_settings(groups, codes, settings.get("bits"))  # THC_CONFIG has the bits of gradients
        policy = with_embeddings(policy, groups, process_group.rank())
    tools = open_gathers(groups, chosen, policy)
    tools.begin = UnhookedGroups(model, everyone, "compress_all_gather").begin_step
    return GatherCompression(groups, policy, tools)


def one_way_codes(settings: RankKeywords, *unused: str) -> RankCodes:
    """Return the codes of a collective without a way back; ConfigurationError for down_bits and unused settings."""
    for name in sorted({"down_bits", *unused} & settings.keys()):
        raise ConfigurationError(f"{name} has no effect in this call: omit it")
    return RankCodes.from_environment(**settings)


def gather_settings(groups: Sequence[ParameterGroup], codes: RankCodes, bits: int | None) -> ResolvedRankCodes:
    """Return the settings of gathers; ConfigurationError if they cannot be compressed. bits: None: 8."""
    if any(map(_is_compressed, groups)):
        raise ConfigurationError("the model's all-gather is compressed already: close() that handle first")
    codes = codes.model_copy(update={"bits": bits or DEFAULT_PARAMETER_BITS})
    return codes.resolve(1, sharded=True)  # nothing is averaged


def _is_compressed(group: ParameterGroup) -> bool:
    return isinstance(fsdp_all_gather(group.source), CompressedAllGather)


@dataclass
class GatherTools:
    """Tools of a model's gathers.

    modules: names of all by module_hash(). ranks: their numbers in the world. device: a GPU that encodes; None: the
    host. keeps_codes: from forward to backward. begin: called before each gather.
    """

    codec: RankCodec
    modules: Mapping[int, str]
    ranks: Sequence[int]
    device: torch.device | None
    recorder: StatsRecorder
    exact: bool = False  # nothing is compressed now
    keeps_codes: bool = False
    begin: Callable[[], None] = lambda: None

    def codes(self, plan: GatherPlan, rank: int, module: str) -> "HostCodes | GatherBatch":
        """Return the kernels of a parameter group. rank: the own one. module: its name, for errors."""
        if self.device is None:
            return HostCodes(plan, rank, self.codec, module, self.modules, self.ranks)
        from byteps_thc._scheme.decoding.gpu.block_batch import GatherBatch

        return GatherBatch(plan, rank, self.codec.settings, round=GATHER_ROUND, device=self.device)


def open_gathers(
    groups: Sequence[ParameterGroup], settings: ResolvedRankCodes, policy: CompressionPolicy
) -> GatherTools:
    """Compare the settings of all ranks, and the kernels of their GPUs; collective.

    Call it before an engine opens: ranks that do not compress gathers then raise, too. Raises ConfigurationError if
    parameters are on a GPU without usable kernels.
    """
    process_group, on = groups[0].process_group, groups[0].source.device
    kernels = agree_on_kernels(process_group, settings.codes, policy, on, gathers=True)
    with refusals_told(process_group):
        device = device_of(process_group, None, kernels, on)
        if device is None and on.type != "cpu" and process_group.size() > 1:
            raise ConfigurationError(
                f'the model\'s parameters are on {on}, where gathers need NCCL, and kernels="auto" or "device" in the '
                "CompressionPolicy. For compressed gradients alone, call compress_reduce_scatter()"
            )
    questions = Communicators(process_group, policy.deadline_s).for_questions()
    own = {"engine": "all-gather", "parameter_bits": settings.codes.bits, "seed": settings.codes.seed}
    threads = policy.thread_count(introduce(questions.gather, policy.shared_settings() | own).ranks_on_this_host)
    codec = RankCodec(settings, 0, _core.ThreadPool(threads) if threads > 1 else None)
    recorder = StatsRecorder(PlainCollective.among_ranks(process_group.size(), sharded=True))
    modules = {module_hash(group.name): group.name for group in groups}
    return GatherTools(codec, modules, world_ranks(process_group), device, recorder)


class GatherCompression:
    """Handle of compressed gathers: statistics, exact(), close(). Checkpoints need no state of gathers."""

    def __init__(self, groups: Sequence[ParameterGroup], policy: CompressionPolicy, tools: GatherTools) -> None:
        self._groups, self._tools = groups, tools
        self._uncompressed = [fsdp_all_gather(group.source) for group in groups]
        for group, uncompressed in zip(groups, self._uncompressed, strict=True):
            # A cast, because the interface is private in torch.
            compressed = cast(Any, CompressedAllGather(group, tools, policy, uncompressed))
            group.module.set_custom_all_gather(compressed)

    def compression_stats(self) -> CompressionStats:
        """Return this rank's traffic of parameters. Steps and times are 0."""
        return self._tools.recorder.snapshot()

    def keep_codes(self, keep: bool = True) -> None:
        """Keep the codes that forward gathers, so that backward gathers nothing; on all ranks.

        This costs a byte for each parameter of the whole model at 8 bits, from forward to backward.
        """
        self._tools.keeps_codes = keep

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Gather exact parameters within the block, on all ranks: the parameters that checkpoints have.

        Without it, evaluation has the weights of training.
        """
        self._set_exact(True)
        try:
            yield
        finally:
            self._set_exact(False)

    def close(self) -> None:
        """Restore torch's all-gather. Repeated calls are allowed."""
        for group, uncompressed in zip(self._groups, self._uncompressed, strict=True):
            group.module.set_custom_all_gather(uncompressed)
        self._set_exact(False)

    def _set_exact(self, exact: bool) -> None:
        self._tools.exact = exact
        for group in self._groups:  # torch keeps some whole parameters after a forward pass without backward
            group.module.reshard()


class CompressedAllGather:
    """All-gather of a parameter group, as torch's (private) AllGather. uncompressed: torch's, which moves the codes."""

    def __init__(self, group: ParameterGroup, tools: GatherTools, policy: CompressionPolicy, uncompressed: Any) -> None:
        self._tools, self._uncompressed = tools, uncompressed
        self._matrix = shard_matrix(group, group.parameters, policy)
        plan, rank = gather_plan(self._matrix, tools.codec.settings.codes.bits), group.process_group.rank()
        self._codes, self._size_bytes = tools.codes(plan, rank, group.name), plan.message.size_bytes
        self._kept: Tensor | None = None  # codes of forward, for backward

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for shards, as torch does."""
        return cast(Tensor, self._uncompressed.allocate(size, dtype=dtype, device=device))

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """Write the shards of all ranks to `output_tensor`, of which `input_tensor` may be this rank's part."""
        tools, ranks = self._tools, group.size()
        tools.begin()
        if not self._compresses(output_tensor, input_tensor):
            self._kept = None  # of an earlier forward pass
            tools.recorder.add_gradient(uncompressed=output_tensor.numel())
            tools.recorder.add_collective(output_tensor.nbytes, ranks)
            return cast(dist.Work | None, self._uncompressed(output_tensor, input_tensor, group, async_op))
        compressed = sum(part.size for part in self._matrix.compressed)
        tools.recorder.add_gradient(compressed=compressed, uncompressed=ranks * self._matrix.exact_columns)
        # In host memory always a Work: torch waits for it before it uses parameters. On a GPU, only the stream waits.
        later, in_backward = async_op or tools.device is None, current_backward() != NO_BACKWARD
        gathered, self._kept, work = self._kept, None, None
        if gathered is None or not in_backward:
            device = tools.device or torch.device("cpu")
            gathered = self.allocate((ranks * self._size_bytes,), dtype=torch.uint8, device=device).view(ranks, -1)
            tools.recorder.add_collective(gathered.nbytes, ranks)
            own = gathered[group.rank()]
            self._codes.encode(input_tensor, own)
            work = self._uncompressed(gathered.view(-1), own, group, later)
            self._kept = gathered if tools.keeps_codes and not in_backward else None
        decoding = _Decoding(work, partial(self._codes.decode, gathered, output_tensor))
        if later:
            return decoding
        decoding.wait()
        return None

    def _compresses(self, output: Tensor, shard: Tensor) -> bool:
        # With reshard_after_forward=n, backward gathers forward's decoded weights, exactly, among n ranks. If dtypes
        # differ within a group, torch gathers bytes.
        fits = shard.dtype in DTYPES and (shard.numel(), output.numel()) == (self._matrix.columns, self._matrix.size)
        return fits and bool(self._matrix.compressed) and not self._tools.exact


class _Decoding(dist.Work):
    """A gather in flight; torch waits for it before it uses the parameters. The first wait() decodes."""

    def __init__(self, codes: dist.Work | None, decode: Callable[[], None]) -> None:
        super().__init__()
        self._codes, self._decode = codes, decode

    @override
    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if self._codes is not None:
            self._codes.wait()
        self._decode()
        self._codes, self._decode = None, lambda: None
        return True
