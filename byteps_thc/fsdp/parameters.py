"""FSDP2's parameter groups: names and sizes of the flat tensors that hooks get, from private structures of torch."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.settings import describe, warn_once
from byteps_thc._base.torch_private import (
    NO_BACKWARD,
    current_backward,
    fsdp_all_reduce_hook,
    fsdp_divisor,
    fsdp_dtype,
    fsdp_groups,
    fsdp_module_info,
    fsdp_whole_shape,
    has_gradient_hooks,
    require_fsdp,
)
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice, ShardMatrix
from byteps_thc._engine.parameters import is_embedding_weight, require_dtypes, saturated
from byteps_thc._engine.policy import CompressionPolicy, without_wrappers

require_fsdp()


@dataclass(frozen=True)
class ShardedParameter:
    """A parameter of a group. shape: before FSDP2, after tensor parallelism. dim: sharded over `ranks` ranks."""

    name: str
    shape: torch.Size
    dim: int
    ranks: int
    source: Any  # torch's FSDPParam

    def __str__(self) -> str:
        """Return a text that must be the same on all ranks."""
        return f"{self.name!r} {list(self.shape)} sharded in dimension {self.dim}"

    @property
    def trained(self) -> bool:
        """Whether it gets gradients now."""
        return bool(self.source.sharded_param.requires_grad)

    @property
    def elements(self) -> int:
        """Elements of the whole parameter."""
        return self.shape.numel()

    @property
    def columns(self) -> int:
        """Elements of a shard, padding included."""
        rest = self.elements // max(self.shape[self.dim], 1)
        return math.ceil(self.shape[self.dim] / self.ranks) * rest

    @property
    def is_embedding(self) -> bool:
        """Whether it is the weight of an embedding, tied or not."""
        place = fsdp_module_info(self.source)
        modules = zip((place.module, *place.shared_modules), (place.param_name, *place.shared_param_names), strict=True)
        return any(is_embedding_weight(module, name) for module, name in modules)

    @property
    def splits(self) -> list[tuple[int, int]]:
        """Size and parts of each dimension that tensor or expert parallelism splits over ranks of other shards."""
        whole = self.source.sharded_param
        parts = [1] * whole.dim()
        for axis, placement in enumerate(whole.placements):
            if (dim := getattr(placement, "dim", None)) is not None:
                parts[dim] *= whole.device_mesh.size(axis)
        parts[self.dim] //= self.ranks
        return [split for split in zip(whole.shape, parts, strict=True) if split[1] > 1]

    def row_elements(self, policy: CompressionPolicy) -> int:
        """Return the elements of a shard's rows with scales; 0 without any."""
        elements = policy.row_elements(self.name, self.shape)
        return elements if self.dim == 0 else elements // self.ranks

    def shard_elements(self, rank: int) -> int:
        """Elements of a rank's shard without padding: shards are equal, but the last ones may be short or empty."""
        return min(max(self.elements - rank * self.columns, 0), self.columns)


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters whose gradients one FSDPModule reduces together, in this order. name: the module's."""

    name: str
    module: FSDPModule
    process_group: dist.ProcessGroup
    parameters: tuple[ShardedParameter, ...]
    source: Any  # torch's FSDPParamGroup

    def trained(self) -> tuple[ShardedParameter, ...]:
        """Return the parameters that get gradients now."""
        return tuple(parameter for parameter in self.parameters if parameter.trained)

    @property
    def gradient_dtype(self) -> torch.dtype:
        """The dtype of the reduction."""
        mixed = self.source.mp_policy
        dtype: torch.dtype = mixed.reduce_dtype or mixed.param_dtype or self.parameters[0].source.sharded_param.dtype
        return dtype

    @property
    def gradients_are_awaited(self) -> bool:
        """Whether averages are used before the end of backward: by a hook, or by a reduction outside of any pass."""
        return (
            current_backward() == NO_BACKWARD
            or fsdp_all_reduce_hook(self.source) is not None
            or any(has_gradient_hooks(parameter.source.sharded_param) for parameter in self.parameters)
        )

    @property
    def inputs_kept(self) -> int:
        """Most reduce-scatters that hold their inputs at a time (set_reduce_scatter_max_input_buffers)."""
        return getattr(self.source.comm_ctx, "reduce_scatter_max_input_buffers", 1)

    def multiply(self, average: Tensor, factor: int) -> Tensor:
        """Convert an average to the sum that torch has requested, in place, and return it.

        If torch does not divide the result, it has divided float16 gradients before, and their sum is the average:
        finite values stay finite. Others may exceed the range, as with torch.
        """
        is_half_sum = average.dtype == torch.float16 and factor > 1
        if is_half_sum and fsdp_divisor(self.source, self.process_group, average) == 1:
            return average.copy_(saturated(average.float().mul_(factor), torch.float16))
        return average.mul_(factor)

    def finished(self, reduced: Tensor) -> Tensor:
        """Return a reduced gradient as torch adds it to the parameters' gradients: divided, in their dtype."""
        divisor = fsdp_divisor(self.source, self.process_group, reduced)
        if divisor != 1:
            reduced.div_(divisor)
        dtype = fsdp_dtype(self.source)
        return reduced if dtype is None else reduced.to(dtype)

    def warn_of_unused(self) -> None:
        """Warn once, on rank 0, that gradients travel uncompressed, because torch omits unused parameters."""
        if self.process_group.rank() == 0:
            warn_once(
                f"module {self.name!r}: some parameters got no gradient, and torch does not say which. They must be "
                "the same on all ranks, and the module's gradients travel uncompressed in such steps: freeze these "
                "parameters (requires_grad=False), or call set_reduce_scatter_unused_params(True)"
            )


def parameter_groups(model: nn.Module, *, replicated: bool = False) -> list[ParameterGroup]:
    """Return the groups of all FSDPModules in `model`. replicated: allow 2-D meshes, where torch averages.

    Raises ConfigurationError without any, or if gradients are not reduced in a way that can be compressed.
    """
    if not isinstance(model, nn.Module):
        raise ConfigurationError(f"the first argument is the model, not {describe(model)}")
    groups = list(_groups(model, replicated))
    if not groups:
        raise ConfigurationError("the model has no FSDP2 modules: call torch.distributed.fsdp.fully_shard on it first")
    return groups


def groups_of_mesh(
    groups: Sequence[ParameterGroup], is_compressed: Callable[[ParameterGroup], bool]
) -> list[ParameterGroup]:
    """Return the groups that have the first group's ranks; warn of others, such as experts, if uncompressed."""
    mesh = groups[0].process_group
    others = [group.name for group in groups if group.process_group is not mesh and not is_compressed(group)]
    if others and dist.get_rank() == 0:
        warn_once(
            f"{', '.join(map(repr, others))}: sharded over other ranks than {groups[0].name!r}, and not compressed by "
            "this call. Pass these modules, in an nn.ModuleList, to a call of their own before this one"
        )
    return [group for group in groups if group.process_group is mesh]


def _groups(model: nn.Module, replicated: bool) -> Iterator[ParameterGroup]:
    seen = set()
    names = {module: without_wrappers(name) for name, module in model.named_modules()}
    for module, name in names.items():
        if not isinstance(module, FSDPModule):
            continue
        sources = fsdp_groups(module)
        _require_plain(name or "(root)", sources, replicated)
        for source in sources:
            if id(source) not in seen:  # fully_shard([a, b]) makes one group of two modules
                seen.add(id(source))
                yield _group(name or "(root)", module, source, names)


def _group(name: str, module: FSDPModule, source: Any, names: dict[nn.Module, str]) -> ParameterGroup:
    process_group: dist.ProcessGroup = source.mesh_info.shard_process_group
    # By module, because load_state_dict(assign=True) replaces parameters, as FSDP2 notices in the first forward pass.
    places = [fsdp_module_info(parameter) for parameter in source.fsdp_params]
    if any(place.module not in names for place in places):
        raise ConfigurationError(
            f"module {name!r} shares its group with modules outside the model: pass the whole model"
        )
    parameters = tuple(
        ShardedParameter(
            f"{names[place.module]}.{place.param_name}".removeprefix("."),
            fsdp_whole_shape(parameter),
            parameter.fsdp_placement.dim,
            process_group.size(),
            parameter,
        )
        for parameter, place in zip(source.fsdp_params, places, strict=True)
    )
    return ParameterGroup(name, module, process_group, parameters, source)


def _require_plain(name: str, sources: list[Any], replicated: bool) -> None:
    if len(sources) > 1:
        raise ConfigurationError(
            f"module {name!r} has parameters on several meshes (shard_placement_fn): torch cannot set communication "
            "hooks there; call fully_shard on each part"
        )
    for source in sources:
        if not hasattr(source.mesh_info, "shard_process_group"):
            raise ConfigurationError(f"module {name!r} is replicated, not sharded: use DDP with byteps_thc.ddp")
        if hasattr(source.mesh_info, "replicate_process_group") and not replicated:
            raise ConfigurationError(
                f"module {name!r} is sharded with a 2-D mesh: torch averages over the replicas itself, uncompressed. "
                'Shard over one dimension, fully_shard(module, mesh=mesh["shard"]), and leave the other to '
                'byteps_thc.fsdp.compress_replicas(model, mesh["replicate"])'
            )


def shard_matrix(
    group: ParameterGroup, trained: tuple[ShardedParameter, ...], policy: CompressionPolicy
) -> ShardMatrix:
    """Return the group's reduce-scatter input, if these parameters have gradients. policy: selects compressed ones.

    If tensor parallelism splits a parameter unevenly, its ranks number blocks differently. Whole parameters then travel
    exactly, because their averages must stay the same on these ranks.
    """
    ranks, columns = group.process_group.size(), total_columns(trained)
    compressed, exact = [], []
    uneven = any(size % parts for parameter in trained for size, parts in parameter.splits)
    for parameter, start in placed(trained):
        width = parameter.row_elements(policy)
        whole = uneven and not parameter.splits
        if whole or policy.travels_exactly(parameter.name, parameter.elements, width):
            exact.append((start, start + parameter.columns))
        else:
            compressed += [
                ParameterSlice(parameter.name, row * columns + start, row * columns + start + elements, width)
                for row in range(ranks)
                if (elements := parameter.shard_elements(row))
            ]
    in_order = tuple(sorted(compressed, key=lambda part: part.start))
    lines = tuple(map(str, trained))
    return ShardMatrix(_group_key(group, trained), ranks, columns, in_order, tuple(exact), lines)


def require_group_dtypes(groups: Iterable[ParameterGroup], policy: CompressionPolicy) -> None:
    """Raise ConfigurationError that names trained parameters whose gradients cannot be averaged."""
    each = ((parameter, group.gradient_dtype) for group in groups for parameter in group.trained())
    require_dtypes(((parameter.name, dtype, parameter.elements) for parameter, dtype in each), policy)


def with_embeddings(policy: CompressionPolicy, groups: Sequence[ParameterGroup], rank: int) -> CompressionPolicy:
    """Return the policy with the groups' embeddings in `rows`; rank 0 warns of names without a group."""
    parameters = [parameter for group in groups for parameter in group.parameters]
    policy.warn_of_unmatched((parameter.name for parameter in parameters), rank)
    policy = policy.with_rows(parameter.name for parameter in parameters if parameter.is_embedding)
    trained = (parameter for group in groups for parameter in group.trained())
    policy.warn_if_all_travel_exactly(((own.name, own.elements, own.row_elements(policy)) for own in trained), rank)
    return policy


def own_shard(
    group: ParameterGroup, trained: tuple[ShardedParameter, ...], gradient: Tensor, policy: CompressionPolicy
) -> GradientBuffer:
    """Return this rank's shard of the group's gradient as a buffer. policy: which rows have scales."""
    if gradient.numel() != total_columns(trained):  # torch omits unused parameters: all travel uncompressed
        return GradientBuffer(f"fsdp {group.name}, {gradient.numel()} elements", gradient, ())
    rank = group.process_group.rank()
    slices = tuple(
        ParameterSlice(parameter.name, start, start + elements, parameter.row_elements(policy))
        for parameter, start in placed(trained)
        if (elements := parameter.shard_elements(rank))
    )
    return GradientBuffer(_group_key(group, trained), gradient, slices)


def total_columns(trained: tuple[ShardedParameter, ...]) -> int:
    """Return the elements of a rank's shard of these parameters' gradients, padding included."""
    return sum(parameter.columns for parameter in trained)


def placed(trained: tuple[ShardedParameter, ...]) -> Iterator[tuple[ShardedParameter, int]]:
    """Yield the parameters with their first columns."""
    start = 0
    for parameter in trained:
        yield parameter, start
        start += parameter.columns


def _group_key(group: ParameterGroup, trained: tuple[ShardedParameter, ...]) -> str:
    frozen = [parameter.name for parameter in group.parameters if parameter not in trained]
    return f"fsdp {group.name}" + f" without {', '.join(frozen)}" * bool(frozen)
