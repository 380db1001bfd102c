"""A rank that trains FSDP2 and DDP models with Adam, and saves and loads them, and all states, with DCP.

The compression of "server" keeps residuals. Ranks which decode each other's codes have counters alone.

settings: server (address of a thc-ps), job (the first free one) and runs, by name; each begins with a new model and new
compression. A run: load (folder or null), first (step), steps, save (folder or null), more (steps after saving), errors
(whether to try loads that fail).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from log_lines import log_lines
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import NetworkConfig, ServerCodes
from byteps_thc._base.errors import CheckpointError, ConfigurationError
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc.checkpoint import CompressionState, checkpointable, load
from byteps_thc.ddp import ThcState, thc_hook
from byteps_thc.fsdp import compress_reduce_scatter
from thc_lab.ranks import Rank, joined_rank

CODES: dict[str, Any] = {"partition_bytes": 8192}
KINDS = ("server", "fsdp", "ddp")
POLICY = CompressionPolicy(bypass_elements=64)


class Training:
    def __init__(self, rank: Rank, kind: str, job: int) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(inputs, outputs) for inputs, outputs in ((30, 90), (90, 70), (70, 5))]
        model = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
        self.rank = rank
        self.compression: CompressionState
        if kind == "fsdp":
            mesh = init_device_mesh("cpu", (rank.ranks,))
            for part in (layers[0], layers[1], model):
                fully_shard(part, mesh=mesh)
            self.model: nn.Module = model
            self.compression = compress_reduce_scatter(model, policy=POLICY, **CODES)
        else:
            # Other buckets in DDP's first iteration, and so other random signs, would make resumed runs differ.
            self.model = DistributedDataParallel(model, find_unused_parameters=True)
            options: dict[str, Any] = CODES
            if kind == "server":
                codes = ServerCodes(error_feedback=True, **CODES)
                options = {"network": NetworkConfig([rank.settings["server"]], job=job, codes=codes)}
            self.compression = ThcState(policy=POLICY, model=model, **options)
            self.model.register_comm_hook(self.compression, thc_hook)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def train(self, first: int, steps: int) -> None:
        for step in range(first, first + steps):
            inputs = torch.randn(16, 30, generator=torch.Generator().manual_seed(100 * step + self.rank.rank))
            nn.functional.mse_loss(self.model(inputs), inputs[:, :5].sin()).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def save(self, folder: Path) -> None:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.save(
            {"model": model, "optimizer": optimizer, "thc": checkpointable(self.compression)}, checkpoint_id=folder
        )

    def load(self, folder: Path) -> None:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        load(self.compression, folder)

    def snapshot(self) -> dict[str, Any]:
        state = self.compression.state_dict()
        return {
            "parameters": {name: _whole(p).detach().clone() for name, p in self.model.named_parameters()},
            "residuals": state.get("residuals", {}),
            "step": state["step"],
            "round": state["round"],
        }


def _whole(parameter: Tensor) -> Tensor:
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def load_where_rank_1_fails(training: Training, folder: Path) -> dict[str, Any]:
    """It has other parameters; then it cannot take over a state."""
    before = training.snapshot()
    failing = training.rank.rank == 1
    parameters = [("layer", torch.zeros(1))] if failing else None
    errors = [_error_of_load(training.compression, folder, parameters)]
    unchanged = training.snapshot()
    errors.append(_error_of_load(Refusing(training.compression) if failing else training.compression, folder, None))
    return {"errors": errors, "before": before, "after": unchanged}


class Refusing:
    def __init__(self, state: CompressionState) -> None:
        self.state_dict = state.state_dict

    def load_state_dict(self, _: Mapping[str, Any]) -> None:
        raise ConfigurationError("this is no state")


def _error_of_load(state: CompressionState, folder: Path, parameters: list[tuple[str, Tensor]] | None) -> str:
    try:
        load(state, folder, parameters=parameters)
    except (CheckpointError, ConfigurationError) as error:
        return f"{type(error).__name__}: {error}"
    return "loaded"


def run(rank: Rank, kind: str, settings: Mapping[str, Any], job: int) -> dict[str, Any]:
    training = Training(rank, kind, job)
    report = {}
    if settings["load"] is not None:
        training.load(Path(settings["load"]) / kind)
        report["loaded"] = training.snapshot()
    training.train(settings["first"], settings["steps"])
    report["trained"] = training.snapshot()
    if settings["save"] is not None:
        training.save(Path(settings["save"]) / kind)
    training.train(settings["first"] + settings["steps"], settings["more"])
    report["ended"] = training.snapshot()
    if settings["errors"] and kind == "server":
        report["one_fails"] = load_where_rank_1_fails(training, Path(settings["load"]) / kind)
    elif settings["errors"]:
        with log_lines() as lines:
            error = _error_of_load(training.compression, Path(settings["load"]) / "server", None)
        report["of a server"] = [error, lines]
    return report


with joined_rank() as rank:
    runs = enumerate(rank.settings["runs"].items(), rank.settings["job"])
    rank.report({name: {kind: run(rank, kind, settings, job) for kind in KINDS} for job, (name, settings) in runs})
