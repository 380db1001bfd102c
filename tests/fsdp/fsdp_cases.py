"""Cases of a rank with sharded models; test_fsdp.py checks their results."""

import math
from collections.abc import Callable
from typing import Any

import torch
from error_of import error_of
from known_gradients import KnownGradients, all_shapes, full_gradients, gradients, sharded_model
from log_lines import log_lines
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.utils.checkpoint import checkpoint

from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc.fsdp import compress_reduce_scatter
from thc_lab.ranks import Rank

SMALL = CompressionPolicy(bypass_elements=64)
#: Several rotation blocks and several pieces per group.
CODES: dict[str, Any] = {"partition_bytes": 4096}


def backward(model: nn.Module, wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    model(wanted).backward()
    return full_gradients(model)


def three_steps(rank: Rank, mesh: DeviceMesh, reduce_dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    model = sharded_model(mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=reduce_dtype))
    handle = compress_reduce_scatter(model, policy=SMALL, **CODES)
    averages = [backward(model, gradients(rank.rank, step, all_shapes())) for step in range(3)]
    stats = handle.compression_stats()
    return {
        "averages": averages,
        "sizes": handle.parameter_sizes,
        "sent_bytes": stats.sent_bytes,
        "ratio": stats.ratio,
        "steps": stats.steps,
    }


def bfloat16(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    return three_steps(rank, mesh, torch.bfloat16)


def float16(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    return three_steps(rank, mesh, torch.float16)


def near_the_largest(_: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Averages of float16 gradients that are its largest number on all ranks, where two ranks sum halves."""
    signs = {name: g.sign() for name, g in gradients(0, 0, all_shapes()).items()}
    averages = []
    for awaited in (False, True):
        model = sharded_model(mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float16))
        compress_reduce_scatter(model, policy=SMALL, **CODES)
        if awaited:
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(lambda _: None)
        averages.append(backward(model, {name: 65504.0 * sign for name, sign in signs.items()}))
    return {"averages": averages, "signs": signs}


def accumulation(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Two backward passes are reduced together, in one step."""
    model = sharded_model(mesh)
    handle = compress_reduce_scatter(model, policy=SMALL, **CODES)
    first, second = (gradients(rank.rank, step, all_shapes()) for step in range(2))
    model.set_requires_gradient_sync(False)
    model.set_is_last_backward(False)
    model(first).backward()
    model.set_requires_gradient_sync(True)
    model.set_is_last_backward(True)
    return {"averages": backward(model, second), "steps": handle.compression_stats().steps}


def resharding(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    averages = []
    for reshard in (False, True, 2):
        model = sharded_model(mesh, reshard_after_forward=reshard)
        compress_reduce_scatter(model, policy=SMALL, **CODES)
        averages.append(backward(model, gradients(rank.rank, 0, all_shapes())))
    return {"averages": averages}


def unused(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Parameters without a gradient: a whole group, part of a group; then counted as zeros."""
    model = sharded_model(mesh)
    compress_reduce_scatter(model, policy=SMALL, **CODES)
    own = gradients(rank.rank, 0, all_shapes())
    with log_lines() as warnings:
        group = backward(model, {name: g for name, g in own.items() if not name.startswith("second")})
        part = backward(model, {name: g for name, g in own.items() if name != "second.weight"})
        model.set_reduce_scatter_unused_params(True)
        zeros = backward(model, {name: g for name, g in own.items() if name != "second.weight"})
    return {"group": group, "part": part, "zeros": zeros, "warnings": warnings}


def frozen(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Frozen parameters have no gradient; when they thaw, they have one."""
    model = sharded_model(mesh)
    compress_reduce_scatter(model, policy=SMALL, **CODES)
    own = gradients(rank.rank, 0, all_shapes())
    model.second.weight.requires_grad_(False)
    averages = backward(model, own)
    model.second.weight.requires_grad_(True)
    return {"averages": averages, "thawed": backward(model, own)}


def divide_factor(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    model = sharded_model(mesh)
    compress_reduce_scatter(model, policy=SMALL, **CODES)
    for module in (model, model.first, model.second):
        module.set_gradient_divide_factor(0.5)
    return {"scaled": backward(model, gradients(rank.rank, 0, all_shapes()))}


def modules_in_one_group(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """As torchtitan shards the last norm with the output layer."""
    model = KnownGradients()
    fully_shard([model.first, model.second], mesh=mesh)
    fully_shard(model, mesh=mesh)
    compress_reduce_scatter(model, policy=SMALL, **CODES)
    return {"averages": backward(model, gradients(rank.rank, 0, all_shapes()))}


def other_dimension(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(96, 40, bias=False))
    fully_shard(model, mesh=mesh, shard_placement_fn=lambda _: Shard(1))
    handle = compress_reduce_scatter(model, policy=SMALL, **CODES)
    # d/dW sum(W x * y) with one-hot rows of x: the gradient is `own`.
    own = gradients(rank.rank, 0, {"0.weight": (40, 96)})["0.weight"]
    (model(torch.eye(96)) * own.t()).sum().backward()
    state = handle.state_dict()
    handle.load_state_dict(state)
    return {"average": full_gradients(model)["0.weight"], "same": handle.state_dict() == state}


def policy(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Steps 0 and 2 are not compressed."""
    model = sharded_model(mesh)
    handle = compress_reduce_scatter(
        model, policy=CompressionPolicy(bypass_elements=64, warmup_steps=1, stop_step=2), **CODES
    )
    own = gradients(rank.rank, 0, all_shapes())
    return {"averages": [backward(model, own) for _ in range(3)], "coordinates": handle.compression_stats().coordinates}


def excluded(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """A parameter of a group, and a whole group, that travel exactly."""
    model = sharded_model(mesh)
    only = CompressionPolicy(bypass_elements=64, exclude=("second.weight", "first", "nowhere"))
    with log_lines() as lines:
        handle = compress_reduce_scatter(model, policy=only, **CODES)
    averages = [backward(model, gradients(rank.rank, step, all_shapes())) for step in range(2)]
    return {"averages": averages, "lines": lines, "ratio": handle.compression_stats().ratio}


def not_finite(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """One rank's loss overflows: all skip the step; then the scale is halved."""
    model = sharded_model(mesh)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    handle = compress_reduce_scatter(model, policy=SMALL, grad_scaler=scaler, **CODES)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def step(wanted: dict[str, Tensor]) -> None:
        scaler.scale(model(wanted)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    def parameters() -> dict[str, Tensor]:
        return {name: p.full_tensor().clone() for name, p in model.named_parameters()}

    own = gradients(rank.rank, 0, all_shapes())
    step(own)
    before = parameters()
    step({name: g * (math.inf if rank.rank == 1 else 1.0) for name, g in own.items()})
    after, scale = parameters(), scaler.get_scale()
    step(own)
    last = parameters()
    return {
        "unchanged": all(torch.equal(before[name], after[name]) for name in before),
        "scale": scale,
        "loss_scale": handle.state_dict()["loss_scale"],
        "trained": all(bool(p.isfinite().all()) and not torch.equal(p, after[name]) for name, p in last.items()),
    }


def refusals(rank: Rank, mesh: DeviceMesh) -> dict[str, str]:
    replicated = init_device_mesh("cpu", (rank.ranks // 2, 2), mesh_dim_names=("replicate", "shard"))
    twice = sharded_model(mesh)
    compress_reduce_scatter(twice, **CODES)
    models: dict[str, Callable[[], object]] = {
        "plain": lambda: compress_reduce_scatter(KnownGradients(), **CODES),
        "twice": lambda: compress_reduce_scatter(twice, **CODES),
        "native": lambda: compress_reduce_scatter(sharded_model(replicated), **CODES),
        "settings": lambda: compress_reduce_scatter(sharded_model(mesh), seed=rank.rank),
        "float64": lambda: compress_reduce_scatter(sharded_model(mesh).double(), policy=SMALL, **CODES),
    }
    return {name: error_of(make) for name, make in models.items()}


def closing(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """After close() the model reduces as before, and can be compressed anew."""
    model = sharded_model(mesh)
    handle = compress_reduce_scatter(model, policy=SMALL, **CODES)
    own = gradients(rank.rank, 0, all_shapes())
    compressed = backward(model, own)
    handle.close()
    exact = backward(model, own)
    compress_reduce_scatter(model, policy=SMALL, **CODES)
    return {"compressed": compressed, "exact": exact, "again": backward(model, own)}


class Blocks(nn.Module):
    """Blocks that are groups of their own; around: calls a block."""

    def __init__(self, mesh: DeviceMesh, around: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24)) for _ in range(2))
        self.head = nn.Linear(24, 3)
        self.around = around
        for part in (*self.blocks, self):
            fully_shard(part, mesh=mesh)

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = self.around(block, inputs)
        return self.head(inputs).square().mean()


def checkpointing(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Activation checkpoints around blocks; the reentrant ones have backward passes within the backward pass."""
    around: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
        "none": lambda block, inputs: block(inputs),
        "plain": lambda block, inputs: checkpoint(block, inputs, use_reentrant=False),
        "reentrant": lambda block, inputs: checkpoint(block, inputs, use_reentrant=True),
    }
    result = {}
    for kind, call in around.items():
        model = Blocks(mesh, call)
        handle = compress_reduce_scatter(model, policy=SMALL, **CODES)
        inputs = torch.randn(8, 24, generator=torch.Generator().manual_seed(rank.rank)).requires_grad_()
        averages = []
        for _ in range(2):
            model(inputs).backward()
            averages.append(full_gradients(model))
        result[kind] = {"averages": averages, "steps": handle.compression_stats().steps}
    return result


def pipeline(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Pipeline schedules reduce when all micro-batches are through, outside of a backward pass, as here."""
    model = sharded_model(mesh)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    handle = compress_reduce_scatter(model, policy=SMALL, grad_scaler=scaler, **CODES)
    own = gradients(rank.rank, 0, all_shapes())
    for _ in range(2):
        model.set_requires_gradient_sync(False)
        model.set_is_last_backward(False)
        scaler.scale(model(own)).backward()
        model.set_requires_gradient_sync(True)
        model.set_is_last_backward(True)
        root = model._get_fsdp_state()
        for state in root._state_ctx.all_states:
            for group in state._fsdp_param_groups:
                group.post_backward()
        root._root_post_backward_final_callback()
        averages = full_gradients(model)
        scaler.update(2.0)
    return {"averages": averages, "steps": handle.compression_stats().steps, "scale": handle.state_dict()["loss_scale"]}


def names(_: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Wrappers are not in the names, and parameters that came after fully_shard() have some."""
    wrapped = nn.Sequential(checkpoint_wrapper(nn.Linear(8, 8)), nn.Linear(8, 8))
    fully_shard(wrapped, mesh=mesh)
    with torch.device("meta"):
        filled = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    fully_shard(filled, mesh=mesh)
    values = {name: torch.zeros_like(parameter, device="cpu") for name, parameter in filled.named_parameters()}
    filled.load_state_dict(values, assign=True)
    return {
        kind: list(compress_reduce_scatter(model, policy=SMALL, **CODES).parameter_sizes)
        for kind, model in (("wrapped", wrapped), ("filled", filled))
    }


def different_parameters(rank: Rank, mesh: DeviceMesh) -> str:
    """Rank 1 does not use one."""
    model = sharded_model(mesh)
    compress_reduce_scatter(model, policy=SMALL, **CODES)
    own = gradients(rank.rank, 0, all_shapes())
    wanted = {n: g for n, g in own.items() if rank.rank != 1 or n != "second.weight"}
    return error_of(lambda: model(wanted).backward())


class Branches(nn.Module):
    """Each rank takes one of two modules of the same size."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.first, self.branches = nn.Linear(48, 48), nn.ModuleList([nn.Linear(48, 48) for _ in range(2)])
        self.branch = rank % 2

    def forward(self, x: Tensor) -> Tensor:
        return self.branches[self.branch](self.first(x)).sum()


def different_modules(rank: Rank, mesh: DeviceMesh) -> str:
    """Ranks may not run different modules, whatever set_reduce_scatter_unused_params() says."""
    model = Branches(rank.rank)
    for module in (model.first, *model.branches):
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh).set_reduce_scatter_unused_params(True)
    compress_reduce_scatter(model, policy=SMALL, **CODES)
    return error_of(lambda: model(torch.ones(4, 48)).backward())


def branches_of_a_module(rank: Rank, mesh: DeviceMesh) -> dict[str, Tensor]:
    """They may use different parameters of one; reports each branch's gradient."""
    torch.manual_seed(0)
    model = Branches(rank.rank)
    fully_shard(model, mesh=mesh).set_reduce_scatter_unused_params(True)
    compress_reduce_scatter(model, policy=SMALL, **CODES)
    model(torch.ones(4, 48)).backward()
    return {name: gradient for name, gradient in full_gradients(model).items() if name.startswith("branches")}


CASES: list[Callable[[Rank, DeviceMesh], Any]] = [
    three_steps, bfloat16, float16, accumulation, resharding, unused, frozen, divide_factor, other_dimension, policy,
    modules_in_one_group, not_finite, refusals, closing, checkpointing,
    pipeline, names, different_parameters, different_modules,
    branches_of_a_module, excluded, near_the_largest,
]  # fmt: skip
