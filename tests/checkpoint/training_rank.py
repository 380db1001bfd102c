"""A rank that trains an FSDP2 and DDP models with Adam, and saves and loads all of it with DCP.

The compression of "server" keeps residuals, that of ranks which decode each other's codes has counters alone.

settings: server (address of a thc-ps), job (the first one that is free there) and runs, by name; each begins with a new
model and new compression. A run: load (folder or null), first (step),
steps, save (folder or null), more (steps after saving), full_disk (folder that there is no
room in, or null; then all errors are tried).
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from log_lines import log_lines
from ranks import Rank, joined_rank
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import NetworkConfig, ThcConfig
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._scheme.errors import CheckpointError, ConfigurationError
from byteps_thc.checkpoint import CompressionState, checkpointable, load
from byteps_thc.ddp import ThcState, thc_hook
from byteps_thc.fsdp import compress_reduce_scatter

CONFIG = ThcConfig(partition_bytes=8192)
KINDS = ("server", "fsdp", "ddp")
POLICY = CompressionPolicy(bypass_elements=64)


class Training:
    """Model, optimizer and compression of a rank."""

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
            self.compression = compress_reduce_scatter(model, CONFIG, policy=POLICY)
        else:
            # DDP's first iteration has other buckets than later ones, and with that other random signs. Only without
            # that, as here, are resumed runs bit-exact.
            self.model = DistributedDataParallel(model, find_unused_parameters=True)
            network, config = None, CONFIG
            if kind == "server":
                network = NetworkConfig([rank.settings["server"]], job=job)
                config = CONFIG.model_copy(update={"error_feedback": True})
            self.compression = ThcState(None, config, policy=POLICY, network=network, model=model)
            self.model.register_comm_hook(self.compression, thc_hook)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def train(self, first: int, steps: int) -> None:
        for step in range(first, first + steps):
            generator = torch.Generator().manual_seed(100 * step + self.rank.rank)
            inputs = torch.randn(16, 30, generator=generator)
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
        parameters = {name: _whole(p).detach().clone() for name, p in self.model.named_parameters()}
        return {
            "parameters": parameters,
            "residuals": state.get("residuals", {}),
            "step": state["step"],
            "round": state["round"],
        }


def _whole(parameter: Tensor) -> Tensor:
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def save_to_full_disk(training: Training, folder: Path) -> dict[str, Any]:
    """A limit on the size of files stands in for a disk without room."""
    before = training.snapshot()
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, unlimited[1]))
    try:
        training.save(folder)
        saved = "saved"
    except CheckpointException as error:  # DCP's own
        saved = "; ".join(str(cause) for cause, _ in error.failures.values())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    try:
        load(training.compression, folder)
        loaded = "loaded"
    except CheckpointError as error:
        loaded = str(error)
    return {"saved": saved, "loaded": loaded, "before": before, "after": training.snapshot()}


def load_where_rank_1_fails(training: Training, folder: Path) -> dict[str, Any]:
    """It has other parameters; then it cannot take over what was read."""
    before = training.snapshot()
    failing = training.rank.rank == 1
    parameters = [("layer", torch.zeros(1))] if failing else None
    errors = [_error_of_load(training.compression, folder, parameters)]
    unchanged = training.snapshot()
    errors.append(_error_of_load(Refusing(training.compression) if failing else training.compression, folder, None))
    return {"errors": errors, "before": before, "after": unchanged}


class Refusing:
    """A state that takes over nothing."""

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
    if settings["full_disk"] is not None:
        report["full_disk"] = save_to_full_disk(training, Path(settings["full_disk"]) / kind)
        if kind == "server":
            report["one_fails"] = load_where_rank_1_fails(training, Path(settings["load"]) / kind)
        else:
            with log_lines() as lines:
                error = _error_of_load(training.compression, Path(settings["load"]) / "server", None)
            report["of a server"] = [error, lines]
    return report


def main() -> None:
    with joined_rank() as rank:
        runs = enumerate(rank.settings["runs"].items(), rank.settings["job"])
        rank.report({name: {kind: run(rank, kind, settings, job) for kind in KINDS} for job, (name, settings) in runs})


if __name__ == "__main__":
    main()
