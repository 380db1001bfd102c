"""Cases of a rank with compressed gathers; test_gathers.py checks their results."""

import os
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed.checkpoint as dcp
from error_of import error_of
from known_gradients import full_gradients
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from byteps_thc._base.errors import InputError
from byteps_thc._base.torch_private import fsdp_groups
from byteps_thc._engine.policy import CompressionPolicy, without_wrappers
from byteps_thc.checkpoint import checkpointable, load
from byteps_thc.fsdp import compress, compress_all_gather, compress_reduce_scatter
from thc_lab.ranks import Rank

POLICY = CompressionPolicy(bypass_elements=128, exclude=("*.down.weight",))


class Block(nn.Module):
    """Rows that no number of ranks divides, small vectors, an excluded matrix. seen: weights of each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(24, 101), nn.LayerNorm(101), nn.Linear(101, 24)
        self.seen: list[dict[str, Tensor]] = []

    def keep(self) -> None:
        self.seen.append({name: weight.detach().clone() for name, weight in self.named_parameters()})

    def forward(self, inputs: Tensor) -> Tensor:
        self.keep()
        if torch.is_grad_enabled():
            inputs.register_hook(lambda _: self.keep())
        return inputs + self.down(self.norm(self.up(inputs).to(self.norm.weight.dtype)).relu().to(inputs.dtype))


def sharded(mesh: DeviceMesh, *, frozen: bool = False, recomputed: bool = False, **options: Any) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(*(checkpoint_wrapper(Block()) if recomputed else Block() for _ in range(2)))
    if frozen:  # torch gathers bytes if dtypes differ
        model[0].norm = nn.LayerNorm(101, dtype=torch.float64).requires_grad_(False)
    for part in (*model, model):
        fully_shard(part, mesh=mesh, **options)
    return model


def inputs_of(rank: Rank, step: int = 0) -> Tensor:
    return torch.randn(8, 24, generator=torch.Generator().manual_seed(100 * step + rank.rank)).requires_grad_()


def full(model: nn.Module) -> dict[str, Tensor]:
    return {without_wrappers(name): p.full_tensor().detach().clone() for name, p in model.named_parameters()}


def weights(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """One forward and backward pass of each kind."""
    both = init_device_mesh("cpu", (rank.ranks // 2, 2), mesh_dim_names=("replicate", "shard"))
    kinds: dict[str, tuple[DeviceMesh, int, dict[str, Any]]] = {
        "default": (mesh, 8, {}),
        "4 bits": (mesh, 4, {}),
        "kept": (mesh, 8, {"reshard_after_forward": False}),
        "partly": (mesh, 8, {"reshard_after_forward": rank.ranks // 2}),
        "bfloat16": (mesh, 8, {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}),
        "hybrid": (both, 8, {}),
        "replicas": (both["shard"], 8, {}),
        "frozen": (mesh, 8, {"frozen": True}),
        "prefetch": (mesh, 8, {}),
        "codes": (mesh, 8, {}),
        "recomputed": (mesh, 8, {"recomputed": True}),
    }
    result = {}
    for kind, (over, bits, options) in kinds.items():
        model = sharded(over, **options)
        exact, handle = full(model), compress_all_gather(model, bits=bits, policy=POLICY)
        if kind == "codes":
            handle.keep_codes()
        if kind == "prefetch":  # several gathers in flight
            model.set_modules_to_forward_prefetch([*model])
            model._set_unshard_async_op(True)
        model(inputs_of(rank)).square().mean().backward()
        kept = all(torch.equal(before, exact[name]) for name, before in full(model).items())
        sent_bytes = handle.compression_stats().sent_bytes
        result[kind] = {"exact": exact, "seen": [b.seen for b in model], "kept": kept, "sent_bytes": sent_bytes}
    return result


def evaluation(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Weights of training, of evaluation, of evaluation with exact parameters, and of training again.

    Then weights are doubled. A forward pass has them exactly, and its backward pass is outside of exact().
    """
    model = sharded(mesh)
    with patch.dict(os.environ, {"THC_CONFIG": "bits=4"}):  # of gradients
        exact, handle = full(model), compress_all_gather(model, policy=POLICY)
    model(inputs_of(rank)).square().mean().backward()
    with torch.inference_mode():
        model(inputs_of(rank))
        with handle.exact():
            model(inputs_of(rank))
    model(inputs_of(rank)).square().mean().backward()
    handle.keep_codes()
    with torch.no_grad():
        model(inputs_of(rank))
        for parameter in model.parameters():
            parameter.mul_(2)
    with handle.exact():
        outputs = model(inputs_of(rank))
    outputs.square().mean().backward()
    return {"exact": exact, "seen": [block.seen for block in model]}


def training(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """Losses of plain FSDP2 and with both directions compressed; weights of a forward pass after close()."""
    losses: dict[str, list[float]] = {"plain": [], "compressed": []}
    for kind, of_kind in losses.items():
        model = sharded(mesh, reshard_after_forward=False)
        handle = compress(model, policy=POLICY)
        if kind == "plain":
            handle.close()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for step in range(40):
            inputs = inputs_of(rank, step)
            loss = (model(inputs) - inputs.detach().roll(1, dims=1)).square().mean()
            loss.backward()
            of_kind.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    ratios = handle.compression_stats().ratio, handle.gathers.compression_stats().ratio
    model(inputs_of(rank))
    handle.close()
    model(inputs_of(rank))
    for block in model:
        block.reshard()
    return {"losses": losses, "ratios": ratios, "exact": full(model), "seen": [block.seen[-1:] for block in model]}


def checkpoints(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """A second step of a model, and of another one that resumes from its checkpoint."""
    folder, models = rank.directory / "gathers", (sharded(mesh), sharded(mesh))
    handles = [compress(model, policy=POLICY) for model in models]
    models[0](inputs_of(rank)).square().mean().backward()
    torch.optim.SGD(models[0].parameters(), lr=0.1).step()
    models[0].zero_grad()
    dcp.save({"model": models[0].state_dict(), "thc": checkpointable(handles[0])}, checkpoint_id=folder)
    state = models[1].state_dict()
    dcp.load({"model": state}, checkpoint_id=folder)
    models[1].load_state_dict(state)
    load(handles[1], folder)
    exact = [full(model) for model in models]
    for model in models:
        model(inputs_of(rank, 1)).square().mean().backward()
    seen = [[block.seen[-1] for block in model] for model in models]
    return {"exact": exact, "seen": seen, "gradients": [full_gradients(model) for model in models]}


def gather_refusals(rank: Rank, mesh: DeviceMesh) -> dict[str, str]:
    twice, on_gpu, odd = sharded(mesh), sharded(mesh), rank.rank % 2
    compress_all_gather(twice)
    fsdp_groups(on_gpu[0])[0].device = torch.device("cuda", 0)
    calls: dict[str, Callable[[], object]] = {
        "device": lambda: compress_all_gather(on_gpu),
        "twice": lambda: compress_all_gather(twice),
        "bits": lambda: compress_all_gather(sharded(mesh), bits=6 if odd else 8),
        "one": lambda: (compress if odd else compress_reduce_scatter)(sharded(mesh)),
        "both": lambda: compress(sharded(mesh), down_bits=6 if odd else 8),
        "down_bits": lambda: compress_all_gather(sharded(mesh), down_bits=6),
        "partition_bytes": lambda: compress_all_gather(sharded(mesh), partition_bytes=256),
    }
    return {name: error_of(call) for name, call in calls.items()}


def other_order(rank: Rank, mesh: DeviceMesh) -> list[str]:
    """Errors in a first and in a later forward pass, in which ranks run blocks of equal sizes in other orders."""
    errors = []
    for passes in (0, 1):
        model = sharded(mesh)
        compress_all_gather(model, policy=POLICY)
        for _ in range(passes):
            model(inputs_of(rank)).square().mean().backward()
        blocks = [*model]
        model._modules.update(zip("01", reversed(blocks) if rank.rank % 2 else blocks, strict=True))
        try:
            model(inputs_of(rank))
        except InputError as error:
            errors.append(str(error))
    return errors


CASES: list[Callable[[Rank, DeviceMesh], Any]] = [
    weights, evaluation, training, checkpoints, gather_refusals, other_order,
]  # fmt: skip
