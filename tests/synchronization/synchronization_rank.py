"""A rank that goes through the cases of test_synchronization.py; settings: {"servers": [thc-ps]}."""

import copy
import logging
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from error_of import error_of
from log_lines import log_lines
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import (
    CompressionPolicy,
    NetworkConfig,
    ParameterSynchronizer,
    ServerCodes,
    ThcReducer,
    Timeouts,
    synchronize_parameters,
)
from byteps_thc._engine import steps as engine_steps
from byteps_thc.ddp import ThcState, compress
from thc_lab.packet_faults import packet_faults
from thc_lab.ranks import Rank, joined_rank

# Lost packets are counted: there must be many.
CODES = ServerCodes(rotation_block=1024, error_feedback=True, codes_per_packet=1024)
POLICY = CompressionPolicy(bypass_elements=0, deadline_s=40)


def new_training(network: NetworkConfig) -> tuple[DistributedDataParallel, ThcState, torch.optim.Optimizer]:
    """Ranks begin with the same parameters, as DDP has it."""
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300), nn.Linear(300, 7)))
    return ddp, compress(ddp, network=network, policy=POLICY), torch.optim.AdamW(ddp.parameters(), lr=1e-2)


def lossy_training(rank: Rank, job: int) -> tuple[DistributedDataParallel, ThcState, torch.optim.Optimizer]:
    """Packets get lost, other ones for each rank. The seeds lose few norms, which cost a whole step."""
    timeouts = Timeouts(loss_s=0.02, operation_s=40)
    with packet_faults(drop=0.1, seed=3):
        return new_training(
            NetworkConfig(rank.settings["servers"], job=job, loss_tolerant=True, timeouts=timeouts, codes=CODES)
        )


def train(rank: Rank, ddp: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    random = torch.Generator().manual_seed(100 * step + rank.rank)
    optimizer.zero_grad()
    ddp(torch.randn(16, 300, generator=random)).square().mean().backward()
    optimizer.step()


def contents(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Tensor]:
    """Copies of all that must be the same on all ranks."""
    tensors = dict(model.state_dict())
    for i, entry in (optimizer.state_dict()["state"] if optimizer else {}).items():
        tensors |= {f"state {i} {key}": torch.as_tensor(value) for key, value in entry.items()}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def losses(rank: Rank) -> dict[str, Any]:
    """Replicas drift apart, and are made identical; residuals stay."""
    ddp, state, optimizer = lossy_training(rank, job=1)
    synchronizer = ParameterSynchronizer(ddp, optimizer, compression=state, synchronize_every=6)
    for step in range(6):
        train(rank, ddp, optimizer, step)
    before = contents(ddp, optimizer)
    residuals = state.state_dict()["residuals"]
    synchronizer.synchronize()
    after = contents(ddp, optimizer)
    stats = state.compression_stats()
    kept = state.state_dict()["residuals"]
    report = {
        "before": before,
        "after": after,
        "residuals kept": all(torch.equal(kept[name], residuals[name]) for name in residuals),
        "residuals": kept,
        "expected": stats.expected_contributions,
        "missing": stats.missing_contributions,
    }
    state.close()
    return report


def counted(rank: Rank) -> dict[str, Any]:
    """Every two steps, and again from a checkpoint; a line in rank 0's log."""
    ddp, state, optimizer = lossy_training(rank, job=2)
    synchronizer = ParameterSynchronizer(ddp, optimizer, compression=state, synchronize_every=2)
    done, weights = [], []
    logging.getLogger("byteps_thc").setLevel(logging.INFO)
    with log_lines() as lines:
        for step in range(5):
            train(rank, ddp, optimizer, step)
            done.append(synchronizer.step())
            weights.append(contents(ddp))
    resumed = ParameterSynchronizer(ddp, optimizer, compression=state, synchronize_every=2)
    resumed.load_state_dict(synchronizer.state_dict())
    done += [resumed.step(), resumed.step()]
    state.close()
    return {"done": done, "weights": weights, "lines": lines}


class Odd(nn.Module):
    """Tensors of all kinds."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(rank)
        self.turned = nn.Parameter(torch.randn(5, 70, generator=random).t())
        self.short = nn.Parameter(torch.randn(3000, generator=random).bfloat16())
        self.special = nn.Parameter(torch.tensor([math.nan, -0.0, math.inf, 1.0 + rank]))
        self.scalar = nn.Parameter(torch.tensor(1.0 + rank))
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.big = nn.Parameter(torch.randn((16 << 20) // 4 + 5, generator=random))
        self.register_buffer("count", torch.tensor(rank))
        self.register_buffer("mask", torch.tensor([True, rank == 0]), persistent=False)
        self.register_buffer("spectrum", torch.complex(torch.randn(4, generator=random), torch.ones(4)))


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).clone()


def kinds(rank: Rank) -> dict[str, Any]:
    model = Odd(rank.rank)
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    before = {name: bits(tensor) for name, tensor in named.items()}
    memory = {name: tensor.data_ptr() for name, tensor in named.items()}
    synchronize_parameters(model)
    return {
        "before": before,
        "after": {name: bits(tensor) for name, tensor in named.items()},
        "in place": all(tensor.data_ptr() == memory[name] for name, tensor in named.items()),
    }


def optimizers(rank: Rank) -> dict[str, Any]:
    """The root's state, for any state of the others: none, other tensors, more tensors."""
    makers: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
        "adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
        "sgd": lambda p: torch.optim.SGD([{"params": p[:1]}, {"params": p[1:], "lr": 0.5}], lr=0.1, momentum=0.9),
        "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
        "adafactor": lambda p: torch.optim.Adafactor(p),
    }
    report: dict[str, Any] = {}
    for name, make in makers.items():
        for stepped in ("root", "others"):
            torch.manual_seed(rank.rank)
            model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 2))
            optimizer = make(list(model.parameters()))
            data = torch.randn(4, 20)

            def closure(model: nn.Module = model, optimizer: Any = optimizer, data: Tensor = data) -> Tensor:
                optimizer.zero_grad()
                loss = model(data).square().mean()
                loss.backward()
                return loss

            if (rank.rank == 0) == (stepped == "root"):
                for _ in range(2):
                    optimizer.step(closure)
                optimizer.param_groups[0]["lr"] = 0.01
            root = copy.deepcopy(optimizer.state_dict())
            synchronize_parameters(model, optimizer)
            state = copy.deepcopy(optimizer.state_dict())
            closure()  # with state that was made, the optimizer continues
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.0)
            optimizer.step(closure)
            report[f"{name} {stepped}"] = {"root": root, "state": state}
    return report


class MasterWeights(torch.optim.SGD):
    """Keeps float32 state of bfloat16 parameters."""

    def keep(self, value: object) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["master"] = parameter.detach().float() + 1e-6
                self.state[parameter]["extra"] = value


def states_that_keep_their_dtype(rank: Rank) -> dict[str, Any]:
    model = nn.Linear(30, 30).bfloat16()
    optimizer = MasterWeights(model.parameters(), lr=0.1)
    optimizer.keep({"numbers": [1, 2.5, None, (True, "text")], 3: rank.rank})
    if rank.rank != 0:  # turns it into bfloat16, as after a checkpoint
        optimizer.load_state_dict(optimizer.state_dict())
        assert optimizer.state[model.weight]["master"].dtype == torch.bfloat16
    synchronize_parameters(model, optimizer)
    entry = optimizer.state[model.weight]
    return {"master": entry["master"], "extra": entry["extra"]}


def scaler(rank: Rank) -> dict[str, Any]:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (5 + rank.rank))
    synchronize_parameters(nn.Linear(3, 3), grad_scaler=scaler)
    return {"scale": scaler.state_dict()["scale"]}


def warning(rank: Rank) -> dict[str, list[str]]:
    """Return the log of the first steps: of three, where users have a thousand."""
    engine_steps.PATIENCE_STEPS = 3
    servers = rank.settings["servers"]
    lines: dict[str, list[str]] = {}
    networks = {
        "loss": NetworkConfig(servers, job=11, loss_tolerant=True, codes=CODES),
        "quorum": NetworkConfig(servers, job=12, quorum=0.5, codes=CODES),
        "synchronised": NetworkConfig(servers, job=13, quorum=1, codes=CODES),
        "exact": NetworkConfig(servers, job=14, quorum=2, codes=CODES),
        "ranks": None,
    }
    for name, network in networks.items():
        with log_lines() as logged, ThcReducer(network, policy=POLICY) as handle:
            if name == "synchronised":
                ParameterSynchronizer(nn.Linear(3, 3), compression=handle)
            for _ in range(5):
                handle.all_reduce({"weight": torch.ones(2000)})
        lines[name] = logged
    with log_lines() as logged:
        ddp, state, optimizer = new_training(NetworkConfig(servers, job=15, loss_tolerant=True, codes=CODES))
        for step in range(5):
            train(rank, ddp, optimizer, step)
        state.close()
    return lines | {"ddp": logged}


def reducer(rank: Rank) -> dict[str, Any]:
    torch.manual_seed(rank.rank)
    model = nn.Linear(9, 9)
    with ThcReducer(policy=POLICY) as handle:
        before = contents(model)
        synchronize_parameters(model, compression=handle)
        return {"before": before, "after": contents(model)}


def refusals(rank: Rank) -> dict[str, str]:
    model, odd = nn.Linear(40, 40), rank.rank == 1
    other = nn.Linear(40, 41 if odd else 40)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    grouped = torch.optim.SGD([{"params": [p]} for p in model.parameters()] if odd else model.parameters(), lr=0.1)
    strange = MasterWeights(nn.Linear(3, 3).parameters(), lr=0.1)
    strange.keep(object())
    calm = ParameterSynchronizer(model, sgd, synchronize_every=2)
    shifted = ParameterSynchronizer(model, sgd, synchronize_every=5)
    shifted.load_state_dict({"steps": 7 if odd else 8})
    calls: dict[str, Callable[[], object]] = {
        "every": lambda: ParameterSynchronizer(model, sgd, synchronize_every=3 + rank.rank),
        "steps": shifted.step,
        "model": lambda: synchronize_parameters(other),
        "groups": lambda: synchronize_parameters(model, grouped),
        "optimizer on one": lambda: synchronize_parameters(model, sgd if odd else None),
        "class": lambda: synchronize_parameters(model, adam if odd else sgd),
        "object": lambda: synchronize_parameters(model, strange),
        "nothing": lambda: ParameterSynchronizer(model).step(),
        "zero": lambda: ParameterSynchronizer(model, synchronize_every=0),
        "no number": lambda: ParameterSynchronizer(model, synchronize_every=0.5),  # type: ignore[arg-type]
        "not a model": lambda: synchronize_parameters(dict(model.named_parameters())),
        "not an optimizer": lambda: synchronize_parameters(model, model),
        "not a handle": lambda: synchronize_parameters(model, sgd, compression=CODES),
        "not a state": lambda: calm.load_state_dict({"steps": "7"}),
    }
    return {name: error_of(call) for name, call in calls.items()}


CASES: list[Callable[[Rank], Any]] = [
    kinds,
    optimizers,
    states_that_keep_their_dtype,
    scaler,
    reducer,
    warning,
    refusals,
    losses,
    counted,
]


with joined_rank() as rank:
    report = {}
    for case in CASES:
        dist.barrier()
        report[case.__name__] = case(rank)
    rank.report(report)
