"""Tensors with ThcReducer in many ways; settings: {"scenarios": [names], "servers": [addresses]}."""

import logging
import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from error_of import error_of
from log_lines import log_lines
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from byteps_thc import CompressionPolicy, NetworkConfig, ThcReducer
from byteps_thc._engine.door import Worker, open_engine
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice
from byteps_thc._engine.factory import flat_engine
from byteps_thc._net.store import StoreCommunicator
from byteps_thc._scheme.decoding.settings import RankCodes
from byteps_thc.checkpoint import checkpointable, load
from thc_lab.ranks import Rank, default_group, joined_rank

LARGE = (1 << 20) + 5


def normal(rank: Rank, step: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(100 * step + rank.rank))


def exact_average(tensor: Tensor) -> Tensor:
    average = tensor.detach().float().clone().contiguous()
    dist.all_reduce(average)
    return average / dist.get_world_size()


def many_tensors(rank: Rank, step: int) -> dict[str, Tensor]:
    parameter = nn.Parameter(normal(rank, step, 30, 100))
    parameter.grad = normal(rank, step + 1, 30, 100)
    return {
        "small": normal(rank, step, 10),
        "empty": torch.zeros(0, 3),
        "scalar": normal(rank, step, 1).reshape(()),
        "matrix": normal(rank, step, 40, 50),
        "transposed": normal(rank, step, 60, 40).t(),
        "half": normal(rank, step, 3000).half(),
        "brain": normal(rank, step, 5, 20, 30).bfloat16(),
        "parameter": parameter,
        "its gradient": parameter.grad,
        "every other": normal(rank, step, 4000)[::2],
        "large": normal(rank, step, LARGE),
        "large columns": normal(rank, step, 1 << 10, 2 << 10)[:, : 1 << 10],
        "last": normal(rank, step, 2000),
    }


def averages(rank: Rank) -> dict[str, Any]:
    errors: dict[str, list[float]] = {}
    lost: dict[str, Tensor] = {}
    untouched = True
    with ThcReducer() as reducer:
        for step in range(3):
            tensors = many_tensors(rank, 10 * step)
            expected = {name: exact_average(tensor) for name, tensor in tensors.items()}
            base = tensors["large columns"]._base
            assert base is not None
            rest = base[:, 1 << 10 :].clone()
            assert reducer.all_reduce(tensors) is None
            untouched = untouched and torch.equal(rest, base[:, 1 << 10 :])
            for name, average in expected.items():
                got = tensors[name].detach().float()
                power = float(average.square().sum()) or 1.0
                lost[name] = lost.get(name, 0.0) + got - average
                errors.setdefault(name, []).append(float((got - average).square().sum()) / power)
        sums = {name: float(error.square().sum()) / error.numel() for name, error in lost.items() if error.numel()}
        stats = reducer.compression_stats()
        return {
            "averages": {name: tensor.detach().clone() for name, tensor in tensors.items()},
            "errors": errors,
            "lost": sums,
            "untouched": untouched,
            "steps": stats.steps,
            "ratio": stats.ratio,
            "sizes": reducer.parameter_sizes,
        }


def equals_the_engine(rank: Rank) -> dict[str, Any]:
    policy = CompressionPolicy()
    engine = flat_engine(default_group(), RankCodes(), policy)
    equal = []
    with ThcReducer(policy=policy) as reducer:
        for step in range(2):
            tensors = {"a": normal(rank, step, 3000), "b": normal(rank, step + 50, 4, 1000)}
            # As ThcReducer does it; random keys come from the key of the buffer.
            key = next(iter(reducer._calls.packings.values()))._buffers[0][0] if step else None
            room = torch.zeros(24 * 128 - 3000)  # so that blocks end at tensors
            flat = torch.cat([tensors["a"], room, tensors["b"].flatten()])
            reducer.all_reduce(tensors)
            key = key or next(iter(reducer._calls.packings.values()))._buffers[0][0]
            engine.start_step()
            slices = (ParameterSlice("a", 0, 3000), ParameterSlice("b", 3072, 7072))
            engine.all_reduce(GradientBuffer(key, flat, slices)).wait()
            equal += [torch.equal(flat[:3000], tensors["a"]), torch.equal(flat[3072:], tensors["b"].flatten())]
    engine.close()
    return {"equal": equal}


def asynchronous(rank: Rank) -> dict[str, Any]:
    """Two calls in flight, the second of which all ranks but one have made."""
    results: dict[str, Any] = {}
    with ThcReducer() as reducer:
        first, second = {"a": normal(rank, 0, 5000)}, {"b": normal(rank, 1, 50, 100)}
        expected = [exact_average(first["a"]), exact_average(second["b"])]
        if rank.rank == 0:
            dist.barrier()  # the others' works are under way
        works = [reducer.all_reduce(first, async_op=True), reducer.all_reduce(second, async_op=True)]
        future = works[1].get_future().then(lambda done: (threading.current_thread().name, done.value()))
        if rank.rank > 0:
            results["late"] = error_of(lambda: works[0].wait(timedelta(seconds=0.05)))
            results["early"] = [work.is_completed() for work in works]
            results["again"] = error_of(lambda: reducer.all_reduce({"c": torch.zeros(4), "a": first["a"]}))
            results["state"] = error_of(reducer.state_dict)
            dist.barrier()
        thread, value = future.wait()
        results["value"] = len(value) == 1 and value[0] is second["b"]
        results["thread"] = thread
        results["waited"] = [work.wait() for work in works] + [work.wait(timedelta(seconds=9)) for work in works]
        results["completed"] = [work.is_completed() for work in works]
        results["errors"] = [
            float((got - wanted).square().sum() / wanted.square().sum())
            for got, wanted in zip([first["a"], second["b"]], expected, strict=True)
        ]
        # Many of the same small ones, in flight together.
        many = [{f"{number}": normal(rank, number, 2000)} for number in range(20)]
        for work in [reducer.all_reduce(tensors, async_op=True) for tensors in many]:
            work.wait()
        results["averages"] = {"first": first["a"], "second": second["b"]} | {k: t for d in many for k, t in d.items()}
    return results


def mismatches(rank: Rank) -> dict[str, Any]:
    """Ranks pass different tensors: an error on all, nothing has changed, and the next call is fine."""
    odd = rank.rank == 1
    errors, unchanged = [], []
    with ThcReducer() as reducer:

        def refused(*names_and_sizes: tuple[str, int]) -> None:
            tensors = {name: normal(rank, 0, size) for name, size in names_and_sizes}
            before = {name: tensor.clone() for name, tensor in tensors.items()}
            errors.append(error_of(lambda: reducer.all_reduce(tensors)))
            unchanged.extend(torch.equal(before[name], tensor) for name, tensor in tensors.items())

        refused(*[("a", 2000), ("b", 2000)][:: -1 if odd else 1])
        refused(("c", 3000 + odd), ("d", 10))
        corrected = {"c": normal(rank, 0, 3000), "d": normal(rank, 0, 10)}  # nobody has kept the refused size
        reducer.all_reduce(corrected)
        sizes = dict(reducer.parameter_sizes or {})
        refused(*[("e", 1500), ("f", 2)][: 1 if odd else 2])
        # Both are known now on all ranks, and only their order differs.
        first, second = {"x": normal(rank, 0, 2000)}, {"y": normal(rank, 1, 2000)}
        for tensors in (first, second):
            reducer.all_reduce(tensors)
        works = [reducer.all_reduce(tensors, async_op=True) for tensors in [first, second][:: -1 if odd else 1]]
        errors += [error_of(work.wait) for work in works]
        steps = reducer.compression_stats().steps
        after = {"x": normal(rank, 3, 2000)}
        expected = exact_average(after["x"])
        reducer.all_reduce(after)
        error = float((after["x"] - expected).square().sum() / expected.square().sum())
    return {"errors": errors, "unchanged": unchanged, "steps": steps, "averages": after, "error": error, "sizes": sizes}


def refusals(rank: Rank) -> dict[str, Any]:
    with ThcReducer() as reducer:
        reducer.all_reduce({"known": normal(rank, 0, 2000)})
        once = torch.zeros(3)
        wrong: dict[str, dict[str, Any]] = {
            "size": {"known": torch.zeros(2001)},
            "dtype": {"known": torch.zeros(2000).half()},
            "double": {"x": torch.zeros(2000, dtype=torch.float64)},
            "sparse": {"x": torch.zeros(3).to_sparse()},
            "distributed": {"x": DTensor.from_local(torch.zeros(3), init_device_mesh("cpu", (rank.ranks,)))},
            "none": {"x": None},
            "list": {"x": [1.0]},
            "meta": {"x": torch.zeros(3, device="meta")},
            "expanded": {"x": torch.zeros(1).expand(3)},
            "alias": {"x": once, "y": once.view(3, 1)},
        }
        texts = {name: error_of(lambda tensors=tensors: reducer.all_reduce(tensors)) for name, tensors in wrong.items()}
        texts["worker"] = error_of(lambda: ThcReducer(worker=0, workers=2))
        texts["where"] = error_of(lambda: ThcReducer(["10.0.0.1"]))
        reducer.all_reduce({})  # nothing of nothing
        averages = {"known": normal(rank, 1, 2000)}
        reducer.all_reduce(averages)
    texts["closed"] = error_of(lambda: reducer.all_reduce(averages))
    reducer.close()
    return {"texts": texts, "averages": averages}


def closed_in_flight(rank: Rank) -> dict[str, Any]:
    reducer = ThcReducer()
    work = None
    if rank.rank == 0:
        work = reducer.all_reduce({"a": torch.zeros(2000)}, async_op=True)
        reducer.close()
    dist.barrier()
    reducer.close()
    return {"error": "" if work is None else error_of(work.wait)}


def policies(rank: Rank) -> dict[str, Any]:
    errors, policy = [], CompressionPolicy(warmup_steps=2, bypass_elements=500)
    logging.getLogger("byteps_thc").setLevel(logging.INFO)
    with log_lines() as lines, ThcReducer(None, policy=policy, log_every=2) as reducer:
        for step in range(4):
            tensors = {"large": normal(rank, step, 3000), "small": normal(rank, step + 9, 499)}
            expected = {name: exact_average(tensor) for name, tensor in tensors.items()}
            reducer.all_reduce(tensors)
            errors.append([float((tensors[name] - expected[name]).abs().max()) for name in tensors])
    return {"errors": errors, "lines": lines, "averages": tensors}


def excluded(rank: Rank) -> dict[str, Any]:
    errors = {}
    policy = CompressionPolicy(exclude=("router", "double", "nowhere"))
    with ThcReducer(policy=policy) as reducer, log_lines() as lines:
        for step in range(2):
            tensors = {
                "embed.weight": normal(rank, step, 3000),
                "module.router.weight": normal(rank, step + 9, 4000),
                "double": normal(rank, step + 3, 2000).double(),
                "small": normal(rank, step, 10),
            }
            expected = {name: exact_average(tensor) for name, tensor in tensors.items()}
            reducer.all_reduce(tensors)
            errors = {name: float((tensors[name] - expected[name]).abs().max()) for name in tensors}
        stats = reducer.compression_stats()
    servers = error_of(
        lambda: open_engine(Worker(rank.rank, rank.ranks), None, NetworkConfig(rank.settings["servers"]), policy)
    )
    return {"errors": errors, "lines": lines, "averages": tensors, "ratio": stats.ratio, "servers": servers}


def grad_scaler(rank: Rank) -> dict[str, Any]:
    """Rank 1's gradient is not finite in step 1: the step is skipped everywhere."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model = nn.Linear(100, 40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    finite, scales, busy = [], [], ""
    with ThcReducer(grad_scaler=scaler) as reducer:
        for step in range(3):
            optimizer.zero_grad()
            loss = model(normal(rank, step, 8, 100)).square().mean()
            scaler.scale(loss * (float("inf") if step == 1 and rank.rank == 1 else 1.0)).backward()
            gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
            for name, gradient in gradients.items():
                reducer.all_reduce({name: gradient})
            finite.append(all(bool(gradient.isfinite().all()) for gradient in gradients.values()))
            scaler.step(optimizer)
            scaler.update()
            scales.append(reducer.state_dict()["loss_scale"])
        if rank.rank == 0:
            dist.barrier()  # until then the others' calls are in flight
        work = reducer.all_reduce({"a": torch.zeros(4000)}, async_op=True)
        if rank.rank > 0:
            busy = error_of(lambda: reducer.all_reduce({"b": torch.zeros(4000)}))
            dist.barrier()
        work.wait()
    scales = [scales[0], scales[-1]]
    return {"finite": finite, "scales": scales, "in flight": busy, "averages": gradients}


def resumed(rank: Rank) -> dict[str, Any]:
    """Two calls, a state into another reducer by hand and by DCP, a third call; the same as three calls in one go."""

    def call(reducer: ThcReducer, step: int) -> dict[str, Tensor]:
        tensors = {"one": normal(rank, step, 3000), "two": normal(rank, step + 20, 70, 50)}
        reducer.all_reduce(tensors)
        return tensors

    folder = rank.directory / "checkpoint"
    with ThcReducer() as first:
        for step in range(2):
            call(first, step)
        state = first.state_dict()
        dcp.save({"thc": checkpointable(first)}, checkpoint_id=folder)
        third = call(first, 2)
    results = {}
    for how in ("by hand", "checkpoint"):
        with ThcReducer() as second:
            if how == "by hand":
                second.load_state_dict(state)
            else:
                load(second, folder)
            again = call(second, 2)
            results[how] = all(torch.equal(third[name], again[name]) for name in third)
            results[f"{how}, known"] = error_of(lambda second=second: load(second, folder))
    return {"averages": third} | results


def subgroups(rank: Rank) -> dict[str, Any]:
    groups = [dist.new_group([0, 2]), dist.new_group([1])]
    tensors = {"a": normal(rank, 0, 4000)}
    with ThcReducer(groups[rank.rank % 2]) as reducer:
        reducer.all_reduce(tensors)
        return {"tensor": tensors["a"], "before": normal(rank, 0, 4000), "workers": reducer.state_dict()["workers"]}


def servers(rank: Rank) -> dict[str, Any]:
    """Through thc-ps, with the process group for small tensors."""
    network = NetworkConfig(rank.settings["servers"], job=1)
    with ThcReducer(network) as reducer:
        errors = []
        for step in range(2):
            tensors = {"a": normal(rank, step, 30_000), "b": normal(rank, step, 10)}
            expected = {name: exact_average(tensor) for name, tensor in tensors.items()}
            reducer.all_reduce(tensors)
            difference = [(tensors[name] - expected[name]).square().sum() for name in tensors]
            errors.append(
                [float(d / expected[name].square().sum()) for d, name in zip(difference, tensors, strict=True)]
            )
        swapped = dict(reversed(tensors.items())) if rank.rank == 1 else tensors
        mismatch = error_of(lambda: reducer.all_reduce(swapped))
        reducer.all_reduce(tensors)
    return {"errors": errors, "averages": tensors, "mismatch": mismatch}


def exchanges(rank: Rank) -> dict[str, int]:
    """Count the exchanges of a start: two round trips to the store each."""
    counted, gather = [0], StoreCommunicator.gather

    def counting(communicator: StoreCommunicator, text: bytes) -> list[bytes]:
        counted[0] += 1
        return gather(communicator, text)

    result = {}
    StoreCommunicator.gather = counting  # type: ignore[method-assign]
    try:
        for name, where in (("ranks", None), ("servers", NetworkConfig(rank.settings["servers"], job=9))):
            counted[0] = 0
            ThcReducer(where).close()
            result[name] = counted[0]
    finally:
        StoreCommunicator.gather = gather  # type: ignore[method-assign]
    return result


SCENARIOS = [
    exchanges,
    averages,
    equals_the_engine,
    asynchronous,
    mismatches,
    refusals,
    closed_in_flight,
    policies,
    excluded,
    grad_scaler,
    resumed,
    subgroups,
    servers,
]


with joined_rank() as rank:
    rank.report({scenario.__name__: scenario(rank) for scenario in SCENARIOS})
