"""The private names of torch that byteps_thc uses, checked when a front end is imported."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from operator import attrgetter
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# Names that torch.distributed mostly has, without listing them.
from torch._C._distributed_c10d import AllgatherOptions as AllgatherOptions
from torch._C._distributed_c10d import AllToAllOptions as AllToAllOptions
from torch._C._distributed_c10d import BroadcastOptions as BroadcastOptions
from torch._C._distributed_c10d import FileStore as FileStore
from torch._C._distributed_c10d import HashStore as HashStore
from torch._C._distributed_c10d import PrefixStore as PrefixStore
from torch._C._distributed_c10d import ReduceOptions as ReduceOptions
from torch._C._distributed_c10d import Store as Store
from torch._C._distributed_c10d import TCPStore as TCPStore
from torch.nn.parallel import DistributedDataParallel

from byteps_thc._base.built import NEWEST_TORCH, OLDEST_TORCH


def require(names: Sequence[tuple[object, str]]) -> None:
    """Raise ImportError with the names (owner, attributes) missing in this torch."""
    missing = [
        f"{getattr(owner, '__name__', owner)}.{name}"
        for owner, words in names
        for name in words.split()
        if not hasattr(owner, name) and name not in _written(owner)
    ]
    if missing:
        raise ImportError(
            f"torch {torch.__version__} lacks {', '.join(missing)}: byteps_thc supports torch {OLDEST_TORCH} to "
            f"{NEWEST_TORCH}. Install one of them, pip install 'torch>={OLDEST_TORCH},<={NEWEST_TORCH}.*'"
        )


def _written(owner: object) -> set[str]:
    """Return all names in the methods of a class: attributes of instances are not in the class."""
    methods = [each for each in vars(owner).values() if isinstance(each, FunctionType)]
    return {name for method in methods for name in method.__code__.co_names}


if hasattr(dist, "ProcessGroupNCCL"):  # builds of torch for GPUs
    require([(dist.ProcessGroupNCCL, "abort shutdown alltoall_base _allgather_base")])
require(
    [
        (dist.ProcessGroup, "get_group_store _get_backend"),
        (dist.ProcessGroupGloo, "_Options"),
        (dist.ProcessGroupGloo._Options, "_devices _timeout"),  # type: ignore[attr-defined]
        (DistributedDataParallel, "_comm_hooks"),
        (torch.autograd.Variable, "_execution_engine"),
        (torch._C, "_current_graph_task_id"),
        (torch._C.Future, "_set_unwrap_func"),
        (Tensor, "_post_accumulate_grad_hooks"),
    ]
)
#: The backward pass under way, NO_BACKWARD outside of any.
current_backward: Callable[[], int] = torch._C._current_graph_task_id
NO_BACKWARD = -1


def at_end_of_backward(call: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(call)


def raise_when_waited(future: torch.futures.Future[Any], unwrap: Callable[[Any], Any]) -> None:
    """Pass the result of a future to `unwrap` on every wait."""
    torch._C.Future._set_unwrap_func(future, unwrap)


def backend_of(group: dist.ProcessGroup, device: torch.device) -> Any:
    """Return a group's back end for tensors on a device. RuntimeError if it has none."""
    return group._get_backend(device)


def gloo_options(timeout: timedelta, hostname: str) -> Any:
    gloo: Any = dist.ProcessGroupGloo  # torch's stubs lack the options and collectives of back ends
    options = gloo._Options()
    options._devices, options._timeout = [gloo.create_device(hostname=hostname)], timeout
    return options


def has_communication_hook(ddp: DistributedDataParallel) -> bool:
    return bool(ddp._comm_hooks)


def uncompiled(model: nn.Module) -> nn.Module:
    """Return the argument of torch.compile(); importing its class takes seconds."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


def has_gradient_hooks(parameter: Tensor) -> bool:
    return bool(parameter._post_accumulate_grad_hooks)


def require_fsdp() -> None:
    """Raise ImportError unless FSDP2 has the names used below; a call, because importing FSDP2 is slow."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param, _fsdp_param_group, _fsdp_state

    require(
        [
            (FSDPModule, "set_custom_reduce_scatter set_force_sum_reduction_for_comms set_all_reduce_hook"),
            (FSDPModule, "_get_fsdp_state set_custom_all_gather"),
            (_fsdp_state.FSDPState, "_fsdp_param_group"),
            (_fsdp_param_group.FSDPParamGroup, "_all_reduce_hook _orig_dtype _reduce_scatter_comm mesh_info mp_policy"),
            (_fsdp_param_group.FSDPParamGroup, "_all_gather_comm comm_ctx force_sum_reduction_for_comms fsdp_params"),
            (_fsdp_param.FSDPParam, "_module_info _orig_size fsdp_placement sharded_param"),
            (_fsdp_collectives, "_get_gradient_divide_factors"),
        ]
    )


def fsdp_groups(module: Any) -> list[Any]:
    """Return the FSDPParamGroups of an FSDPModule; torch 2.9 has one at most, and no name for several."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    return [*filter(None, [state._fsdp_param_group])] if groups is None else groups


#: Attributes of an FSDPParam.
fsdp_module_info: Callable[[Any], Any] = attrgetter("_module_info")
fsdp_whole_shape: Callable[[Any], torch.Size] = attrgetter("_orig_size")
#: Attributes of an FSDPParamGroup. dtype: of its parameters; None: none is trained.
fsdp_dtype: Callable[[Any], torch.dtype | None] = attrgetter("_orig_dtype")
fsdp_all_gather: Callable[[Any], Any] = attrgetter("_all_gather_comm")
fsdp_reduce_scatter: Callable[[Any], Any] = attrgetter("_reduce_scatter_comm")
fsdp_all_reduce_hook: Callable[[Any], Any] = attrgetter("_all_reduce_hook")


def remove_fsdp_all_reduce_hook(group: Any) -> None:
    group._all_reduce_hook = None


def fsdp_divisor(group: Any, process_group: dist.ProcessGroup, reduced: Tensor) -> float:
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import _get_gradient_divide_factors as factors

    sums = group.force_sum_reduction_for_comms
    kind = reduced.device.type
    _, divisor, _, _ = factors(process_group, None, reduced.dtype, kind, group.gradient_divide_factor, sums)
    return 1 if divisor is None else divisor
