"""Cases about averages that are on their way during backward; test_overlap.py checks their results."""

import threading
from collections.abc import Callable
from typing import Any

import torch
from known_gradients import all_shapes, gradients, sharded_model
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from byteps_thc._base.errors import InputError
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.communicator import Communicator, Waitable
from byteps_thc.fsdp import FsdpCompression, compress_reduce_scatter
from thc_lab.ranks import Rank

SMALL = CompressionPolicy(bypass_elements=32)
CODES: dict[str, Any] = {"partition_bytes": 4096}
_GATE_S = 60.0  # a gate that nobody opens: a failure, not a hang

BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
BF16_SUMMED_IN_FP32 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
FP16 = MixedPrecisionPolicy(reduce_dtype=torch.float16)


class Blocks(nn.Module):
    """Groups of their own. The first one is used twice in a forward pass, so it is reduced twice in backward."""

    def __init__(self, mesh: DeviceMesh, mp_policy: MixedPrecisionPolicy, *, reentrant: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(24, 50), nn.GELU(), nn.Linear(50, 24)) for _ in range(3))
        self.head = nn.Linear(24, 3)
        self.reentrant = reentrant
        for part in (*self.blocks, self):
            fully_shard(part, mesh=mesh, mp_policy=mp_policy)

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks if self.reentrant else (self.blocks[0], *self.blocks):
            inputs = checkpoint(block, inputs, use_reentrant=True) if self.reentrant else block(inputs)
        return self.head(inputs).float().square().mean()


def train(
    rank: Rank,
    mesh: DeviceMesh,
    *,
    waiting: bool,
    mp_policy: MixedPrecisionPolicy | None = None,
    backwards: int = 1,
    unsynchronized: int = 0,
    divide_factor: float | None = None,
    scaled: bool = False,
    reentrant: bool = False,
) -> dict[str, Any]:
    """Return gradients of three steps, and parameters. waiting: a hook makes backward wait for each average.

    backwards: per step, the first `unsynchronized` of which are not reduced.
    """
    model = Blocks(mesh, mp_policy or MixedPrecisionPolicy(), reentrant=reentrant)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=scaled)
    handle = compress_reduce_scatter(model, policy=SMALL, grad_scaler=scaler, **CODES)
    if divide_factor is not None:
        for module in (model, *model.blocks):
            module.set_gradient_divide_factor(divide_factor)
    seen: dict[int, Tensor] = {}
    if waiting:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda p: seen.__setitem__(id(p), p.grad.to_local().clone())  # type: ignore[union-attr]
            )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank.rank)
    found, seen_are_final = [], True
    for _ in range(3):
        for number in range(backwards):
            model.set_requires_gradient_sync(number >= unsynchronized)
            model.set_is_last_backward(number == backwards - 1)
            scaler.scale(model(torch.randn(8, 24, generator=generator).requires_grad_())).backward()
        own = {name: p.grad.to_local() for name, p in model.named_parameters()}
        found.append({name: gradient.clone() for name, gradient in own.items()})
        if waiting:
            seen_are_final &= all(torch.equal(seen[id(p)], own[name]) for name, p in model.named_parameters())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    handle.close()
    return {
        "gradients": found,
        "parameters": {name: p.to_local().detach().clone() for name, p in model.named_parameters()},
        "steps": handle.compression_stats().steps,
        "hooks_saw_averages": seen_are_final,
    }


#: Settings with effects on when and how averages become gradients.
KINDS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"mp_policy": BF16},
    "bf16, summed in fp32": {"mp_policy": BF16_SUMMED_IN_FP32},
    "fp16, scaled": {"mp_policy": FP16, "scaled": True},
    "several backwards": {"backwards": 3},
    "several backwards, bf16": {"backwards": 2, "mp_policy": BF16},
    "accumulated": {"backwards": 3, "unsynchronized": 2},
    "divided": {"divide_factor": 3.0, "mp_policy": FP16},
    "reentrant checkpoints, scaled": {"reentrant": True, "scaled": True},
}


#: Settings for more than two ranks.
_FEW = ["fp32", "several backwards, bf16", "divided"]


def asynchronous(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """The same training with averages that backward waits for, and without."""
    return {
        kind: {waiting: train(rank, mesh, waiting=waiting, **KINDS[kind]) for waiting in (False, True)}
        for kind in (KINDS if rank.ranks == 2 else _FEW)
    }


class _HeldCodes:
    """A communicator whose all-to-alls are over when a gate is open."""

    def __init__(self, communicator: Communicator, gate: threading.Event) -> None:
        self._communicator, self._gate = communicator, gate
        self.gave_up = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._communicator, name)

    def all_to_all(self, output: Tensor, source: Tensor) -> Waitable:
        return _HeldWork(self, self._communicator.all_to_all(output, source))

    def wait_for_gate(self) -> None:
        self.gave_up |= not self._gate.wait(_GATE_S)


class _HeldWork:
    def __init__(self, held: _HeldCodes, work: Waitable) -> None:
        self._held, self._work = held, work

    def wait(self) -> None:
        self._held.wait_for_gate()
        self._work.wait()


def hold_codes(handle: FsdpCompression, gate: threading.Event) -> _HeldCodes:
    messages = handle._engine._pieces_of.args[0].messages  # type: ignore[attr-defined]
    messages._to_owners = held = _HeldCodes(messages._to_owners, gate)
    return held


def overlap(_: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """No codes arrive before the backward of the first block has begun, which is the last one but torch's own."""
    model = Blocks(mesh, MixedPrecisionPolicy())
    handle = compress_reduce_scatter(model, policy=SMALL, **CODES)
    gate = threading.Event()
    held = hold_codes(handle, gate)
    model.blocks[0][2].register_full_backward_pre_hook(lambda *_: gate.set())
    model(torch.randn(8, 24).requires_grad_()).backward()
    return {"gave_up": held.gave_up, "opened": gate.is_set(), "steps": handle.compression_stats().steps}


def failed_backward(rank: Rank, mesh: DeviceMesh) -> dict[str, Any]:
    """A backward pass fails after two blocks are reduced; their next gradients are zero (torch keeps the head's)."""
    model = Blocks(mesh, MixedPrecisionPolicy())
    compress_reduce_scatter(model, policy=SMALL, **CODES)
    inputs = torch.randn(8, 24, generator=torch.Generator().manual_seed(rank.rank)).requires_grad_()

    def fail(*_: object) -> None:
        raise ValueError("out of memory, say")

    model(inputs).backward()
    before = [parameter.grad.to_local().clone() for parameter in model.blocks.parameters()]
    model.zero_grad(set_to_none=False)
    hook = model.blocks[0][2].register_full_backward_pre_hook(fail)
    error = ""
    try:
        model(inputs).backward()
    except ValueError as failure:
        error = str(failure)
        model.reset_iter_state()
    hook.remove()
    model.zero_grad(set_to_none=False)
    (model(inputs) * 0).backward()
    return {"error": error, "before": before, "after": [p.grad.to_local().clone() for p in model.blocks.parameters()]}


def taken_gradients(rank: Rank, mesh: DeviceMesh) -> str:
    """Somebody takes gradients away in the middle of backward, and keeps the error; the next backward is sound."""
    model = sharded_model(mesh)
    compress_reduce_scatter(model, policy=SMALL, **CODES)
    loss = model(gradients(rank.rank, 0, all_shapes()))
    loss.register_hook(
        lambda _: torch.autograd.Variable._execution_engine.queue_callback(lambda: model.zero_grad(set_to_none=True))
    )
    kept = None
    try:
        loss.backward()
    except InputError as error:
        kept = error  # with its traceback, and the objects in its frames
    model.zero_grad()
    model(gradients(rank.rank, 1, all_shapes())).backward()
    shards = {name: parameter.grad.to_local() for name, parameter in model.named_parameters()}
    empty = [name for name, shard in shards.items() if shard.numel() > 0 and not shard.any()]
    return f"no gradients of {empty}" if empty else str(kept)


CASES: list[Callable[[Rank, DeviceMesh], Any]] = [
    asynchronous, overlap, failed_backward, taken_gradients,
]  # fmt: skip
