"""Many ranks on one device, in one process: the bits of DDP's, meshes' and FSDP2's device engines are the CPU's.

    PYTHONPATH=tests/gpu:tests/lib python -P tests/gpu/many_ranks.py [--device cpu] [--seeds 3]

The engines are those of a GPU, with all their streams; only NCCL is another (local_ranks.py). Streams are late by
random times. On a GPU the kernels are Triton's; on the CPU, where there are no streams, they are the CPU's behind the
same interface. What averages and residuals must be is worked out by compressors alone, on the CPU.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
from gradients import Simulation, bits, buffers_of, check_case, gradient_of, of_all_ranks
from host_device_compressor import HostDeviceCompressor
from local_ranks import LocalCommunicator, LocalRanks, Pause, on_ranks
from reduce_scatter_oracle import ReduceScatterOracle
from torch import Tensor

from byteps_thc import ThcConfig
from byteps_thc.config import ResolvedConfig
from byteps_thc.pipeline.buffers import GradientBuffer, ParameterSlice
from byteps_thc.pipeline.flat_engine import FlatEngine
from byteps_thc.pipeline.hierarchy.agreement import MeshAgreement
from byteps_thc.pipeline.hierarchy.bucket_shards import BucketShards
from byteps_thc.pipeline.hierarchy.engine import NodeEngine
from byteps_thc.pipeline.hierarchy.exchange import ShardExchange
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.shard_matrix import ShardMatrix
from byteps_thc.pipeline.statistics import StatsRecorder
from byteps_thc.pipeline.thc_engines import device_engine
from byteps_thc.transport.among_ranks import resolve_among_ranks
from byteps_thc.transport.communicator import Waitable

CPU = torch.device("cpu")
RANKS, ROWS, NODES = 4, 8, 2
_FEEDBACK = {"rotation_block": 1024, "error_feedback": True}
_CASE: dict[str, Any] = {"policy": {}, "steps": 3, "sizes": [[3100, 30, 5000], [9], [2048, 1025]]}
CASES: dict[str, dict[str, Any]] = {
    "exact sums": _CASE | {"thc": _FEEDBACK | {"bits": 4, "down_bits": None}},
    "requantized sums": _CASE | {"thc": _FEEDBACK | {"bits": 5, "down_bits": 6}},
    "default settings, bfloat16": _CASE | {"thc": {"rotation_block": 1024}, "dtype": "bfloat16"},
    "all-reduce": _CASE | {"thc": _FEEDBACK | {"down_bits": None}, "policy": {"collective": "all_reduce"}},
    "not finite": _CASE | {"thc": _FEEDBACK | {"bits": 4, "down_bits": None}, "not_finite": [[1, 1, 0]]},
    "several pieces": _CASE | {"thc": _FEEDBACK | {"bits": 4, "down_bits": None, "partition_bytes": 1 << 12}},
}


class _Spoiled(LocalCommunicator):
    """Of a rank in whose memory a bit of codes, or of sums of all ranks, changes."""

    def all_to_all(self, output: Tensor, source: Tensor) -> Waitable:
        return _spoil(super().all_to_all(output, source), output)

    def sum_(self, tensor: Tensor) -> Waitable:
        return _spoil(super().sum_(tensor), tensor)


def _spoil(work: Waitable, output: Tensor) -> Waitable:
    work.wait()
    output.view(-1).view(torch.uint8)[:1].bitwise_xor_(8)
    return work


@dataclass(frozen=True)
class Place:
    """Where the ranks are, and how late their streams may be. spoil: a bit of what rank 1 gets is another one."""

    device: torch.device
    seed: int
    spoil: bool = False

    def pause(self, rank: int) -> Pause:
        return Pause(self.device, 1000 * self.seed + rank)

    def communicator(self, ranks: LocalRanks, rank: int, device: torch.device | None = None) -> LocalCommunicator:
        kind = _Spoiled if self.spoil and rank == 1 else LocalCommunicator
        return kind(ranks, rank, device or self.device, self.pause(100 + rank))

    def compressor(self, resolved: ResolvedConfig, rank: int) -> Any:
        if self.device.type == "cpu":
            return HostDeviceCompressor(resolved, workers=resolved.workers, worker=rank)
        from byteps_thc.gpu import GpuCompressor

        return GpuCompressor(resolved, workers=resolved.workers, worker=rank, device=self.device)

    def engine(
        self, ranks: LocalRanks, rank: int, resolved: ResolvedConfig, policy: CompressionPolicy, **options: Any
    ) -> FlatEngine:
        return device_engine(self.compressor(resolved, rank), policy, self.communicator(ranks, rank), **options)

    def late(self, gradient: Tensor, pause: Pause) -> Tensor:
        """The gradient on the device, where it is only once the current stream has waited."""
        source = gradient.to(self.device)
        place = torch.full_like(source, 1e3)
        pause()
        return place.copy_(source)


def go(engine: Any, place: Place, case: dict[str, Any], rank: int) -> list[list[Tensor]]:
    """The averages of all steps, [step][buffer]; the host waits for none of them before the last one."""
    pause, averages = place.pause(rank), []
    for number in range(case["steps"]):
        engine.start_step()
        count = range(len(case["sizes"]))
        gradients = [place.late(gradient_of(case, rank=rank, step=number, number=buffer), pause) for buffer in count]
        futures = [engine.all_reduce(buffer) for buffer in buffers_of(case, gradients)]
        pause()
        for future in futures:
            future.wait()
        averages.append([gradient.clone() for gradient in gradients])
    return [[average.cpu() for average in step] for step in averages]


def check_ddp(place: Place, case: dict[str, Any]) -> None:
    """Buckets of RANKS ranks."""
    config, policy = ThcConfig(**case["thc"]), CompressionPolicy(**case["policy"])
    ranks, resolved = LocalRanks(RANKS), resolve_among_ranks(config, policy.collective, RANKS)

    def work(rank: int) -> dict[str, Any]:
        engine = place.engine(ranks, rank, resolved, policy)
        averages = go(engine, place, case, rank)
        report = {"averages": averages, "residuals": engine.state_dict()["residuals"], "device": True}
        engine.close()
        return report

    check_case(case, on_ranks([ranks], RANKS, work))


def check_rows(place: Place, dtype: torch.dtype) -> None:
    """FSDP2's reduce-scatter: ROWS ranks, a row for each, in two pieces."""
    columns, steps = 3000, 3
    config = ThcConfig(rotation_block=1024, error_feedback=True, partition_bytes=ROWS * 4 * 2048)
    slices = tuple(ParameterSlice("w", row * columns, (row + 1) * columns) for row in range(ROWS))
    matrix = ShardMatrix("matrix", ROWS, columns, slices)
    ranks, resolved = LocalRanks(ROWS), config.resolve_for_owners(ROWS)
    random = torch.Generator().manual_seed(place.seed)
    gradients = torch.randn(steps, ROWS, ROWS, columns, generator=random).to(dtype)

    def work(rank: int) -> tuple[list[Tensor], dict[str, Tensor]]:
        engine, pause = place.engine(ranks, rank, resolved, CompressionPolicy(), sharded=True), place.pause(rank)
        outputs = []
        for number in range(steps):
            engine.start_step()
            gradient = place.late(gradients[number, rank].reshape(-1), pause)
            outputs.append(torch.empty(columns, dtype=dtype, device=place.device))
            engine.reduce_scatter("w", matrix, gradient, outputs[-1]).wait()
            pause()
        residuals = engine.state_dict()["residuals"]
        engine.close()
        return [output.cpu() for output in outputs], residuals

    results = on_ranks([ranks], ROWS, work)
    oracle = ReduceScatterOracle("matrix", ["w"], [], ROWS, config)
    for number in range(steps):
        wanted = oracle.averages([{"w": own.float()} for own in gradients[number]], number, dtype)["w"]
        got = torch.stack([outputs[number] for outputs, _ in results])
        require_same(f"rows in step {number}", got, wanted.view_as(got))
    for rank, (_, residuals) in enumerate(results):
        require_same(f"residual of rank {rank}", residuals["w"], oracle.residuals[rank]["w"])


def check_mesh(place: Place, case: dict[str, Any]) -> None:
    """Two nodes of two ranks: exact averages within them, compressed ones between them."""
    config, policy = ThcConfig(**case["thc"]), CompressionPolicy(**case["policy"])
    resolved = resolve_among_ranks(config, policy.collective, NODES)
    within, between = ([LocalRanks(NODES) for _ in range(NODES)] for _ in range(2))

    def work(rank: int) -> list[list[Tensor]]:
        node, local = divmod(rank, NODES)
        fast = SimpleNamespace(rank=lambda: local, size=lambda: NODES)
        groups = cast(Any, SimpleNamespace(size=NODES * NODES, rank=rank, fast=fast))
        inner = place.engine(between[local], node, resolved, policy)
        scatter, gather = (place.communicator(within[node], local) for _ in range(2))
        agreement = MeshAgreement(
            place.communicator(within[node], local, CPU), place.communicator(between[local], node, CPU)
        )
        exchange = ShardExchange(groups, scatter, gather, agreement, inner.device, asks_once=True)
        engine = NodeEngine(inner, exchange)
        averages = go(engine, place, case, rank)
        engine.close()
        return averages

    results = on_ranks([*within, *between], NODES * NODES, work)
    simulations = [Simulation(resolved, policy, joint=True) for _ in range(NODES)]
    for number in range(case["steps"]):
        for buffer, everyone in enumerate(of_all_ranks(case, NODES * NODES, number)):
            wanted = mesh_average(everyone, simulations)
            for rank, averages in enumerate(results):
                what = f"average of buffer {buffer} in step {number} on rank {rank}"
                require_close_where_small(what, averages[number][buffer], wanted, everyone[0], policy.bypass_elements)


def mesh_average(everyone: list[GradientBuffer], simulations: list[Simulation]) -> Tensor:
    """The average of a buffer; everyone[r]: of rank r. simulations: of the slow dimension, one for each shard."""
    rows = []
    for local, simulation in enumerate(simulations):
        shards = BucketShards(everyone[0], local, NODES, CPU, StatsRecorder())
        owned = []
        for node in range(NODES):
            total = torch.zeros(shards.columns)
            for mine in everyone[node * NODES : (node + 1) * NODES]:
                matrix = mine.gradient.new_zeros(NODES, shards.columns)
                shards.fill(matrix, mine.gradient)
                total += matrix[local]
            owned.append(GradientBuffer(shards.shard.key, total / NODES, shards.shard.parameters))
        rows.append(simulation.average(owned))
    average = torch.empty_like(everyone[0].gradient)
    shards.take(torch.stack(rows).to(average.dtype), average)
    return average


def require_close_where_small(what: str, mine: Tensor, wanted: Tensor, buffer: GradientBuffer, small: int) -> None:
    """The same bits, but for parameters whose shards are summed exactly, in another order."""
    for part in buffer.parameters:
        got, right = (tensor[part.start : part.stop] for tensor in (mine, wanted))
        if part.size // NODES <= small:
            torch.testing.assert_close(got, right, equal_nan=True)
        else:
            require_same(f"{what}, {part.name}", got, right)


def require_same(what: str, mine: Tensor, wanted: Tensor) -> None:
    differ = int((mine != wanted).sum())
    assert bits(mine) == bits(wanted), f"{what}: {differ} of {mine.numel()} differ"


def checks(place: Place) -> dict[str, Callable[[], None]]:
    """All of them, by name."""
    all_checks: dict[str, Callable[[], None]] = {
        f"DDP, {RANKS} ranks, {name}": partial(check_ddp, place, case)
        for name, case in CASES.items()
        if place.device.type == "cpu" or "not_finite" not in case  # NaN has another payload there; see engine_bits.py
    }
    for name in ("exact sums", "requantized sums"):
        all_checks[f"mesh of {NODES} x {NODES}, {name}"] = partial(check_mesh, place, CASES[name])
    for dtype in (torch.float32, torch.bfloat16):
        all_checks[f"{ROWS} rows, {dtype}"] = partial(check_rows, place, dtype)
    return all_checks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, default=1, help="of the pauses; all checks run with each")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin with no other seed after that")
    parser.add_argument("--spoil", action="store_true", help="let rank 1 err, which all checks must find")
    arguments = parser.parse_args()
    failed, done, start = [], 0, time.monotonic()
    for seed in range(arguments.seeds):
        if seed and time.monotonic() - start > arguments.limit_s:
            break
        for name, check in checks(Place(torch.device(arguments.device), seed, arguments.spoil)).items():
            try:
                check()
                done += 1
                print(f"ok: {name}, pauses {seed}", flush=True)
            except Exception:
                failed.append(name)
                print(f"FAILED: {name}, pauses {seed}\n{traceback.format_exc()}", flush=True)
    if failed:
        sys.exit("FAILED: " + ", ".join(failed))
    print(f"same bits: {done} checks of many ranks in one process")


if __name__ == "__main__":
    main()
