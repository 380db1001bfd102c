"""A training with each front end, of which a rank may have another model, state or setting than the others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from known_gradients import Block
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ThcReducer
from byteps_thc._engine.saved_state import sealed
from byteps_thc.ddp import CompressionPolicy, compress
from byteps_thc.fsdp import compress_reduce_scatter, compress_replicas

#: a rank that waits as long gets another error
DEADLINE_S = 60.0
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Setup:
    """A rank's training. shapes: of its parameters, in their order. dtype: of gradients. scale: of its GradScaler;
    None: it has none.
    """

    shapes: Shapes = field(default_factory=lambda: {"a": (40, 64), "b": (40, 64)})
    dtype: torch.dtype = torch.float32
    codes: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    scale: float | None = None


class Training:
    """model: of `setup`. handle: of its compression. average: averages the gradients; None: backward() does."""

    def __init__(
        self,
        setup: Setup,
        model: nn.Module,
        scaler: Any,
        handle: Any,
        average: Callable[[dict[str, Tensor]], object] | None = None,
    ) -> None:
        self._setup, self._model, self._scaler, self._average = setup, model, scaler, average
        self.handle = handle
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def step(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Train with these gradients of this rank; return their averages."""
        loss = self._model({name: gradient.to(self._setup.dtype) for name, gradient in gradients.items()})
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()
        if self._average is not None:
            self._average({name: p.grad for name, p in self._model.named_parameters() if p.grad is not None})
        averages = {name: _whole(p.grad) for name, p in self._model.named_parameters() if p.grad is not None}
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        self._optimizer.zero_grad()
        return {name.removeprefix("module."): average for name, average in averages.items()}

    def change_state(self, **ahead: int) -> None:
        """Load a checkpoint whose counters are so far ahead."""
        state = self.handle.state_dict()
        self.handle.load_state_dict(sealed(state | {name: state[name] + count for name, count in ahead.items()}))

    def change_scale(self, scale: float) -> None:
        """Multiply later losses by another number."""
        self._scaler.update(scale)

    def parameters(self) -> list[Tensor]:
        """This rank's parts of all parameters, copied."""
        return [_local(parameter.detach()).clone() for parameter in self._model.parameters()]


def _local(tensor: Any) -> Tensor:
    own: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return own


def _whole(tensor: Any) -> Tensor:
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.clone()


def _options(setup: Setup) -> dict[str, Any]:
    policy = CompressionPolicy(**{"deadline_s": DEADLINE_S} | dict(setup.policy))
    scaler = None if setup.scale is None else torch.amp.GradScaler("cpu", init_scale=setup.scale, growth_interval=1000)
    return {"policy": policy, "grad_scaler": scaler}


def _sharded(setup: Setup, mesh: DeviceMesh) -> Block:
    # Parameters of one type, which torch gathers in forward; gradients of another one.
    return fully_shard(Block(dict(setup.shapes)), mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=setup.dtype))


def _ddp(_ranks: int, setup: Setup) -> Training:
    return _of_ddp(setup, levels="flat")


def _levels(ranks: int, setup: Setup) -> Training:
    grid = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("between", "within"))
    return _of_ddp(setup, levels=(grid, "between"))


def _of_ddp(setup: Setup, **place: Any) -> Training:
    model = Block(dict(setup.shapes)).to(setup.dtype)
    options, ddp = _options(setup), DistributedDataParallel(model, init_sync=False)  # torch would compare shapes
    return Training(setup, ddp, options["grad_scaler"], compress(ddp, **place, **options, **setup.codes))


def _fsdp(ranks: int, setup: Setup) -> Training:
    options, model = _options(setup), _sharded(setup, init_device_mesh("cpu", (ranks,)))
    return Training(setup, model, options["grad_scaler"], compress_reduce_scatter(model, **options, **setup.codes))


def _hsdp(ranks: int, setup: Setup) -> Training:
    grid = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard"))
    options, model = _options(setup), _sharded(setup, grid["shard"])
    handle = compress_replicas(model, grid["replicate"], **options, **setup.codes)
    return Training(setup, model, options["grad_scaler"], handle)


def _reducer(_ranks: int, setup: Setup) -> Training:
    options, model = _options(setup), Block(dict(setup.shapes)).to(setup.dtype)
    reducer = ThcReducer(**options, **setup.codes)
    return Training(setup, model, options["grad_scaler"], reducer, reducer.all_reduce)


#: Each starts a training on one of so many ranks.
FRONT_ENDS: dict[str, Callable[[int, Setup], Training]] = {
    "DDP": _ddp,
    "two levels": _levels,
    "FSDP2": _fsdp,
    "HSDP": _hsdp,
    "ThcReducer": _reducer,
}
