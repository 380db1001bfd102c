"""DDP in one call."""

from __future__ import annotations

from typing import Unpack

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.steps import LossScale
from byteps_thc._net.groups import refusals_told
from byteps_thc._net.mesh import Levels
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._scheme.config import ThcConfig, ThcSettings
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc.ddp.state import ThcState, thc_hook


def compress(
    ddp: nn.Module,
    config: ThcConfig | None = None,
    *,
    levels: Levels = "auto",
    network: NetworkConfig | None = None,
    policy: CompressionPolicy | None = None,
    grad_scaler: LossScale | None = None,
    log_every: int = 0,
    **settings: Unpack[ThcSettings],
) -> ThcState:
    """Average the gradients of a DDP model compressed, over the ranks of its process group; collective over them.

        ddp = DistributedDataParallel(model)
        state = compress(ddp, bits=4)

    ddp: a DistributedDataParallel without a communication hook, or torch.compile() of one. config: a
    ThcConfig; or settings of ThcConfig as keywords, as here. levels: "flat":
    averages are compressed over all ranks. "auto": if several hosts have equal numbers of ranks, more than one each,
    averages may be exact within a host and compressed between the hosts: over NCCL they are, over gloo if that is the
    faster way, measured here. (mesh, dim): a 2-D mesh of the same ranks and the name of a dimension: averages are exact
    within the nodes, and compressed over the named dimension, between the nodes. Other arguments and errors: as
    ThcState's, which is returned and names residuals after the model's parameters.

        mesh = init_device_mesh("cuda", (nodes, gpus_per_node), mesh_dim_names=("between", "within"))
        state = compress(ddp, levels=(mesh, "between"), bits=4)
    """
    wrapped = getattr(ddp, "_orig_mod", ddp)
    if not isinstance(wrapped, DistributedDataParallel):
        raise ConfigurationError(
            f"compress() needs the DistributedDataParallel that wraps the model, not a {type(wrapped).__name__}: "
            "compress(DistributedDataParallel(model)). byteps_thc.fsdp has the same for fully_shard"
        )
    with refusals_told(wrapped.process_group):
        if wrapped._comm_hooks:
            raise ConfigurationError("the model has a communication hook already, and DDP takes one only: make it anew")
    state = ThcState(
        wrapped.process_group,
        config,
        levels=levels,
        policy=policy,
        network=network,
        model=wrapped,
        grad_scaler=grad_scaler,
        log_every=log_every,
        **settings,
    )
    try:
        wrapped.register_comm_hook(state, thc_hook)
    except RuntimeError:  # torch knows of more that keeps a hook out, such as a built-in one
        state.close()
        raise
    return state
