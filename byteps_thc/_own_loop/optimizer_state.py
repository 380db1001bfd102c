"""An optimizer's state, copied to other ranks bit for bit: torch's load_state_dict() would change dtypes."""

import io
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.settings import describe
from byteps_thc._net.replicas import Replicas

_BATCH_BYTES = 32 << 20  # of state that is on its way at a time
_PLAIN: tuple[Callable[[Any], Any], ...] = (bool, int, float, complex, str, bytes)  # bool first: it is an int


def require_optimizer(optimizer: object) -> None:
    """Raise ConfigurationError unless it is an optimizer whose state is the same on all ranks."""
    if not hasattr(optimizer, "param_groups") or not hasattr(optimizer, "state"):
        raise ConfigurationError(f"optimizer is {describe(optimizer)}: pass the torch optimizer of the training")
    if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__):
        raise ConfigurationError(
            "ZeroRedundancyOptimizer keeps another part of the state on each rank, which cannot be copied from one to "
            "the others: omit the optimizer, or use a plain one"
        )


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the parameters in the order of their groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def broadcast_optimizer(optimizer: torch.optim.Optimizer, replicas: Replicas) -> None:
    """Give all ranks the root's state and hyperparameters; collective. Parameters stay.

    Tensors of the same dtype and shape are overwritten in place, others made, and state that the root lacks is removed.
    Shards (DTensor) are copied to the shards of the other ranks. Raises ConfigurationError on all ranks if the root's
    state has anything but tensors, numbers, texts, None, and lists, tuples and dictionaries of them.
    """
    if replicas.is_root:
        for batch in _batches_or_error(optimizer):
            buffer = io.BytesIO()
            torch.save(batch, buffer)
            replicas.broadcast_bytes(buffer.getvalue())
            _require_good(batch)
        return
    parameters = parameters_of(optimizer)
    last = False
    while not last:
        batch = torch.load(io.BytesIO(replicas.broadcast_bytes(b"")), map_location="cpu", weights_only=True)
        _require_good(batch)
        for number, entry in batch["state"].items():
            parameter = parameters[number]
            if entry is None:
                optimizer.state.pop(parameter, None)
            else:
                optimizer.state[parameter] = _put(entry, optimizer.state.get(parameter), parameter)
        last = batch["last"]
    for group, settings in zip(optimizer.param_groups, batch["groups"], strict=True):
        device_of = group["params"][0] if group["params"] else torch.empty(0, device="cpu")
        group.update({name: _put(entry, group.get(name), device_of) for name, entry in settings.items()})


def _batches_or_error(optimizer: torch.optim.Optimizer) -> Iterator[dict[str, Any]]:
    """Nothing is sent before all of the state is known to be good, but its tensors are read when their turn comes."""
    try:
        for value in (*optimizer.state.values(), *_settings(optimizer)):
            _describe(value, copy=False)
        parameters = parameters_of(optimizer)
        known = {id(parameter) for parameter in parameters}
        for key in optimizer.state:
            if id(key) not in known:
                raise ConfigurationError(f"it has state of {describe(key)}, which is none of its parameters")
    except ConfigurationError as error:
        yield {"error": f"the state of {type(optimizer).__name__} cannot be copied to other ranks: {error}"}
        return
    state: dict[int, Any] = {}
    size = 0
    for number, parameter in enumerate(parameters):
        # None for a parameter without state; .get(), because asking a defaultdict makes state.
        own = optimizer.state.get(parameter)
        state[number] = None if own is None else _describe(own, copy=True)
        size += _tensor_bytes(own)
        if size >= _BATCH_BYTES:
            yield {"state": state, "last": False}
            state, size = {}, 0
    groups = [{name: _describe(value, copy=True) for name, value in group.items()} for group in _settings(optimizer)]
    yield {"state": state, "last": True, "groups": groups}


def _settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def _require_good(batch: dict[str, Any]) -> None:
    if "error" in batch:
        raise ConfigurationError(batch["error"])


def _describe(value: Any, *, copy: bool) -> tuple[Any, ...]:
    """Return _put()'s description of the value. copy: with copies of tensors, on the host; else only check."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise ConfigurationError("it has sparse tensors")
        sharded = hasattr(value, "to_local")
        place = "shard" if sharded else "host" if value.device.type == "cpu" else "device"
        return ("tensor", place, local(value).detach().cpu().clone() if copy else None)
    if isinstance(value, dict):
        return ("dict", {key: _describe(item, copy=copy) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return ("list" if isinstance(value, list) else "tuple", [_describe(item, copy=copy) for item in value])
    if value is None:
        return ("value", None)
    for kind in _PLAIN:
        if isinstance(value, cast(type, kind)):
            return ("value", kind(value))  # NumPy's numbers are floats, too, and would not load
    raise ConfigurationError(f"it has {describe(value)}")


def _put(entry: Any, existing: Any, parameter: Tensor) -> Any:
    """Return the described value. existing: the value in its place. parameter: gives device and shards."""
    kind = entry[0]
    if kind == "tensor":
        return _put_tensor(entry[1], entry[2], existing, parameter)
    if kind == "dict":
        old = existing if isinstance(existing, dict) else {}
        return {key: _put(item, old.get(key), parameter) for key, item in entry[1].items()}
    if kind in ("list", "tuple"):
        olds = list(existing) if isinstance(existing, list | tuple) else []
        olds += [None] * (len(entry[1]) - len(olds))
        items = [_put(item, old, parameter) for item, old in zip(entry[1], olds, strict=False)]
        return items if kind == "list" else tuple(items)
    return entry[1]


def _put_tensor(place: str, value: Tensor, existing: Any, parameter: Tensor) -> Tensor:
    if isinstance(existing, Tensor) and existing.dtype == value.dtype and local(existing).shape == value.shape:
        made = existing
    elif place == "shard":
        made = torch.zeros_like(parameter, dtype=value.dtype)
    else:
        made = torch.empty_like(value, device=local(parameter).device if place == "device" else "cpu")
    with torch.no_grad():
        local(made).copy_(value)
    return made


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, in the same memory; other tensors as they are."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def _tensor_bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return local(value).nbytes
    if isinstance(value, dict):
        return sum(_tensor_bytes(item) for item in value.values())
    return sum(_tensor_bytes(item) for item in value) if isinstance(value, list | tuple) else 0
