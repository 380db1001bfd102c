"""Small models with DDP and thc_hook; settings: {"scenarios": [names]; "servers": addresses of thc-ps}."""

import copy
import functools
from typing import Any

import torch
import torch.distributed as dist
from log_lines import log_lines
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import ServerCodes, ThcReducer
from byteps_thc._base.errors import ConfigurationError, InputError
from byteps_thc.ddp import CompressionPolicy, NetworkConfig, ThcState, compress, thc_hook
from thc_lab.ranks import Rank, joined_rank

FEATURES = 64


class Model(nn.Module):
    """Three layers, the middle one of which a batch may skip."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 128)
        self.middle = nn.Linear(128, 128)
        self.last = nn.Linear(128, 4)

    def forward(self, x: Tensor, middle: bool = True) -> Tensor:
        x = self.first(x).relu()
        return self.last(self.middle(x).relu() if middle else x)


class Training:
    """A DDP model whose buckets are small enough for several, and are rebuilt after the first step."""

    def __init__(
        self, rank: Rank, *, group: Any = None, dtype: torch.dtype = torch.float32, hook: Any = thc_hook, **options: Any
    ) -> None:
        state_options = {
            name: options.pop(name) for name in ("policy", "grad_scaler", "named", "network") if name in options
        }
        self.rank = rank
        torch.manual_seed(0)
        self.ddp = DistributedDataParallel(
            Model().to(dtype), process_group=group, **({"bucket_cap_mb": 0.05} | options)
        )
        named = state_options.pop("named", True)
        self.state = ThcState(group, model=self.ddp if named else None, **state_options)
        self.ddp.register_comm_hook(self.state, hook)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.05)
        self.dtype = dtype

    def loss(self, step: int, **forward: Any) -> Tensor:
        x = torch.randn(8, FEATURES, generator=torch.Generator().manual_seed(100 * step + self.rank.rank))
        output: Tensor = self.ddp(x.to(self.dtype), **forward)
        return output.float().square().mean()

    def step(self, step: int, **forward: Any) -> None:
        self.optimizer.zero_grad()
        self.loss(step, **forward).backward()
        self.optimizer.step()

    def parameters(self) -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.ddp.parameters()])

    def gradients(self) -> Tensor:
        return torch.cat([p.grad.flatten() for p in self.ddp.parameters() if p.grad is not None])

    def report(self) -> dict[str, Any]:
        result = {"parameters": self.parameters()}
        self.state.close()
        return result


def exact_gradients(training: Training, step: int) -> Tensor:
    """The average of the ranks' own gradients, without DDP."""
    model = copy.deepcopy(training.ddp.module)
    model.zero_grad()
    x = torch.randn(8, FEATURES, generator=torch.Generator().manual_seed(100 * step + training.rank.rank))
    model(x).square().mean().backward()
    average = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    dist.all_reduce(average)
    return average / dist.get_world_size()


def plain(rank: Rank) -> dict[str, Any]:
    training = Training(rank)
    sums = [torch.zeros(()), torch.zeros(())]
    for step in range(6):
        exact = exact_gradients(training, step)
        training.step(step)
        sums = [sums[0] + training.gradients(), sums[1] + exact]
        error = (training.gradients() - exact).square().sum() / exact.square().sum()
    stats = training.state.compression_stats()
    result = {"error": error, "sum_error": (sums[0] - sums[1]).square().sum() / sums[1].square().sum()}
    return training.report() | result | {"steps": stats.steps, "ratio": stats.ratio}


class Scaled(nn.Module):
    """A model whose output is multiplied by a float64 scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Model()
        self.scale = nn.Parameter(torch.tensor(0.1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.inner(x)


def float64_scalar(rank: Rank) -> dict[str, Any]:
    torch.manual_seed(0)
    ddp = DistributedDataParallel(Scaled())
    state = compress(ddp)
    x = torch.randn(8, FEATURES, generator=torch.Generator().manual_seed(rank.rank))
    own = copy.deepcopy(ddp.module)
    for model in (ddp, own):
        model(x).square().mean().backward()
    exact = own.scale.grad.clone()
    dist.all_reduce(exact)
    state.close()
    try:
        refused = str(compress(DistributedDataParallel(Scaled().double())))
    except ConfigurationError as error:
        refused = f"ConfigurationError: {error}"
    result = {"scale": ddp.module.scale.grad, "exact": exact / rank.ranks, "refused": refused}
    return result | {"parameters": torch.cat([p.grad.flatten() for p in ddp.parameters()])}


class Spectral(nn.Module):
    """A model with complex parameters: small ones, a large one that is excluded, and one of double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Model()
        self.shift = nn.Parameter(torch.full((4,), 1 + 2j))
        self.filter = nn.Parameter(torch.full((40, 40), 0.1 - 0.2j))
        self.scale = nn.Parameter(torch.tensor(0.3 + 0.1j, dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        turned = (self.scale * (self.inner(x) + self.shift)).abs()
        return turned + (x[:, :40] + 0j).matmul(self.filter).abs().sum(1, keepdim=True)


def complex_parameters(rank: Rank) -> dict[str, Any]:
    torch.manual_seed(0)
    ddp, result = DistributedDataParallel(Spectral()), dict[str, Any]()
    policy = CompressionPolicy(exclude=("filter",))
    try:
        compress(ddp)
    except ConfigurationError as error:
        result["refused"] = str(error)
    state = compress(ddp, policy=policy)
    x = torch.randn(8, FEATURES, generator=torch.Generator().manual_seed(rank.rank))
    own = copy.deepcopy(ddp.module)
    for model in (ddp, own):
        model(x).square().mean().backward()
    state.close()
    for name in ("shift", "filter", "scale"):
        exact = getattr(own, name).grad.clone()
        dist.all_reduce(exact)
        result[name] = getattr(ddp.module, name).grad, exact / rank.ranks
    with ThcReducer(policy=policy) as reducer:
        tensors = {"filter": own.filter.grad.t(), "shift": own.shift.grad}
        reducer.all_reduce(tensors)
        result["reduced"] = [torch.equal(tensor, result[name][0].t()) for name, tensor in tensors.items()]
        try:
            reducer.all_reduce({"shift": own.shift.grad.conj()})
        except InputError as error:
            result["conjugate"] = str(error)
    return result | {"parameters": torch.view_as_real(result["shift"][0]).clone()}


#: Options of trainings of four steps.
WAYS: dict[str, dict[str, Any]] = {
    "without_names": {"named": False},
    "static_graph": {"static_graph": True},
    "wrapped": {"hook": fp16_compress_wrapper(thc_hook)},
    "bfloat16_model": {"dtype": torch.bfloat16},
    "compiled": {"bucket_cap_mb": 25, "compiled": True},  # torch.compile takes no buckets below one MiB
}


def four_steps(rank: Rank, *, compiled: bool = False, **options: Any) -> dict[str, Any]:
    training = Training(rank, **options)
    if compiled:
        training.ddp.compile(backend="aot_eager")
    for step in range(4):
        training.step(step)
    return training.report()


def accumulation(rank: Rank) -> dict[str, Any]:
    training = Training(rank, gradient_as_bucket_view=True)
    for step in range(3):
        with training.ddp.no_sync():
            training.loss(step).backward()
        training.loss(step + 10).backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
    return training.report() | {"steps": training.state.compression_stats().steps}


def unused_parameters(rank: Rank) -> dict[str, Any]:
    training = Training(rank, find_unused_parameters=True)
    for step in range(4):
        training.step(step, middle=step % 2 == 0)
    return training.report()


def unused_with_servers(rank: Rank) -> dict[str, Any]:
    """No rank uses a layer in the second step: its residual is part of a later average."""
    codes = ServerCodes(bits=2, error_feedback=True)
    network = NetworkConfig(rank.settings["servers"], job=31, codes=codes)
    training = Training(rank, find_unused_parameters=True, network=network)
    name, weight = "middle.weight", training.ddp.module.middle.weight
    sizes = [parameter.numel() for parameter in training.ddp.parameters()]
    place = [own for own, _ in training.ddp.module.named_parameters()].index(name)
    lost, exact, residuals = torch.zeros_like(weight), torch.zeros_like(weight), []
    for step in range(4):
        if step != 1:
            exact += exact_gradients(training, step).split(sizes)[place].view_as(weight)
        training.step(step, middle=step != 1)
        if step != 1:
            assert weight.grad is not None
            lost -= weight.grad
        residuals.append(training.state.state_dict()["residuals"])
    average = residuals[-1][name].view_as(weight).clone()
    dist.all_reduce(average)
    lost += exact - average / rank.ranks
    kept = {name: torch.equal(before, residuals[1][name]) for name, before in residuals[0].items()}
    return training.report() | {"kept": kept, "lost": lost.norm() / exact.norm()}


def skipped_steps(rank: Rank) -> dict[str, Any]:
    """A gradient of one parameter is not finite on one rank, in every parameter in turn, compressed or not; then the
    same in one of several backward passes. Reports which steps have changed the parameters.
    """
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    training = Training(rank, grad_scaler=scaler)
    spoiled: list[str] = []

    def spoil(name: str, gradient: Tensor) -> Tensor:
        if name not in spoiled or rank.rank != 1:
            return gradient
        damaged = gradient.clone()
        damaged.view(-1)[-1] = float("nan")
        return damaged

    for name, parameter in training.ddp.module.named_parameters():
        parameter.register_hook(functools.partial(spoil, name))

    def trains(step: int, *names: str) -> bool:
        """Whether a step of one backward pass per name, which spoils that parameter, changes the parameters."""
        parameters = training.parameters()
        training.optimizer.zero_grad()
        for number, name in enumerate(names):
            spoiled[:] = [name]
            with torch.autocast("cpu", torch.bfloat16):
                loss = training.loss(1000 * number + step)
            scaler.scale(loss).backward()
        scaler.step(training.optimizer)
        scaler.update()
        return not torch.equal(training.parameters(), parameters)

    result = {"": trains(0, "")}
    for step, name in enumerate(["first.weight", "first.bias", "middle.weight", "last.weight", "last.bias"], 1):
        result[name] = trains(step, name)
        result[f"after {name}"] = trains(step + 100, "")
    result["second pass"] = trains(200, "", "middle.weight")
    result["accumulated"] = trains(201, "", "")  # at another scale
    result["first pass"] = trains(202, "first.bias", "")
    return training.report() | {"trains": result, "scaled_by": scaler.get_scale() / 1024.0}


def resumed(rank: Rank) -> dict[str, Any]:
    """Three steps, a checkpoint into a new process's objects, three more; the same as six steps in one go."""
    reference = Training(rank)
    for step in range(6):
        reference.step(step)
    first = Training(rank)
    for step in range(3):
        first.step(step)
    checkpoint = first.state.state_dict()
    second = Training(rank)
    second.ddp.load_state_dict(first.ddp.state_dict())
    second.state.load_state_dict(checkpoint)
    for step in range(3, 6):
        second.step(step)
    first.state.close()
    result: dict[str, Any] = {"restored": checkpoint["round"] > 0 and checkpoint["step"] == 3}
    # DDP numbers its buckets anew: codes of the first step are of other blocks.
    result["distance"] = (second.parameters() - reference.parameters()).norm() / reference.parameters().norm()
    reference.state.close()
    return second.report() | result


def subgroups(rank: Rank) -> dict[str, Any]:
    """Two jobs at the same time, of even and of odd ranks."""
    return four_steps(rank, group=[dist.new_group([0, 2]), dist.new_group([1, 3])][rank.rank % 2])


def excluded(rank: Rank) -> dict[str, Any]:
    """A layer that travels exactly, in a bucket with others; then ranks that differ."""
    policy = CompressionPolicy(exclude=("middle", "nowhere.*"))
    with log_lines() as lines:
        training = Training(rank, policy=policy, bucket_cap_mb=25)
    differences = []
    for step in range(3):
        exact = exact_gradients(training, step)
        training.step(step)
        differences.append((training.gradients() - exact).abs())
    ratio = training.state.compression_stats().ratio
    try:
        Training(rank, policy=CompressionPolicy(exclude=("first",) if rank.rank else ("last",)))
        different = "nothing"
    except ConfigurationError as error:
        different = str(error)
    try:
        Training(rank, policy=policy, named=False)
        unnamed = "nothing"
    except ConfigurationError as error:
        unnamed = str(error)
    largest = torch.stack(differences).amax(0).split([p.numel() for p in training.ddp.parameters()])
    errors = dict(zip((n for n, _ in training.ddp.module.named_parameters()), map(torch.max, largest), strict=True))
    result = {"errors": errors, "ratio": ratio, "lines": lines, "different": different, "unnamed": unnamed}
    return training.report() | result


with joined_rank() as rank:
    report = {}
    for name in rank.settings["scenarios"]:
        report[name] = four_steps(rank, **WAYS[name]) if name in WAYS else globals()[name](rank)
    rank.report(report)
