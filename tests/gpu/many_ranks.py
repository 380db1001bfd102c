"""Many ranks on one device, in one process: the bits of DDP's, meshes' and FSDP2's device engines are the CPU's.

PYTHONPATH=tests/gpu:tests/lib python -P tests/gpu/many_ranks.py [--seeds 3]

The engines have a GPU's streams, late by random times, and local_ranks.py in NCCL's place. Averages must be
NumPy's (rank_oracle.py). With TRITON_INTERPRET=1 tensors are on the CPU, without streams.
"""

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
from gradients import bits, buffers_of, check_case, gradient_of, of_all_ranks
from local_ranks import LocalCommunicator, LocalRanks, Pause, on_ranks
from rank_oracle import RankOracle, ReduceScatterOracle
from torch import Tensor

from byteps_thc._base.arrays import indexed_device
from byteps_thc._engine.agreement import RankAgreement
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice, ShardMatrix
from byteps_thc._engine.factory import rank_engine
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._engine.hierarchy.engine import NodeEngine
from byteps_thc._engine.hierarchy.exchange import BucketShards, ShardExchange
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.statistics import StatsRecorder
from byteps_thc._scheme.decoding.settings import RankCodes

CPU = torch.device("cpu")
ON_GPU = torch.cuda.is_available()
RANKS, ROWS, NODES = (4, 8, 2) if ON_GPU else (4, 3, 2)
_SIZES = [[3100, 30, 5000], [9], [2048, 1025]] if ON_GPU else [[1100, 30], [9]]
_CASE: dict[str, Any] = {"thc": {}, "policy": {}, "steps": 3 if ON_GPU else 1, "sizes": _SIZES}
CASES: dict[str, dict[str, Any]] = {
    "default bits": _CASE,
    # Each row has blocks of 64 and one of 14.
    "3 bits up, 8 down, bfloat16, rows of 270": _CASE
    | {"thc": {"bits": 3, "down_bits": 8}, "dtype": "bfloat16", "width": 270},
}
if ON_GPU:
    CASES["rows of embeddings"] = _CASE | {"width": 50}


@dataclass(frozen=True)
class Place:
    """The place of the ranks, and how late their streams may be."""

    device: torch.device
    seed: int

    def pause(self, rank: int) -> Pause:
        return Pause(self.device, 1000 * self.seed + rank)

    def communicator(self, ranks: LocalRanks, rank: int, device: torch.device | None = None) -> LocalCommunicator:
        return LocalCommunicator(ranks, rank, device or self.device, self.pause(100 + rank))

    def engine(
        self, ranks: LocalRanks, rank: int, codes: RankCodes, policy: CompressionPolicy, *, sharded: bool = False
    ) -> FlatEngine:
        settings = codes.resolve(ranks.size, sharded=sharded)
        communicator = self.communicator(ranks, rank)
        return rank_engine(settings, rank, policy, [communicator], device=self.device, sharded=sharded)

    def late(self, gradient: Tensor, pause: Pause) -> Tensor:
        """The gradient on the device, where it is only once the current stream has waited."""
        source = gradient.to(self.device)
        place = torch.full_like(source, 1e3)
        pause()
        return place.copy_(source)


def go(engine: Any, place: Place, case: dict[str, Any], rank: int) -> list[list[Tensor]]:
    """The averages of all steps, [step][buffer]; the host waits for none before the last one."""
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
    codes, policy = RankCodes(**case["thc"]), CompressionPolicy(**case["policy"])
    ranks = LocalRanks(RANKS)

    def work(rank: int) -> dict[str, Any]:
        engine = place.engine(ranks, rank, codes, policy)
        report = {"averages": go(engine, place, case, rank), "residuals": engine.state_dict().get("residuals", {})}
        engine.close()
        return report

    check_case(case, on_ranks([ranks], RANKS, work))


def check_rows(place: Place, dtype: torch.dtype) -> None:
    """FSDP2's reduce-scatter: ROWS ranks, a row for each."""
    columns, steps = (3000, 3) if ON_GPU else (1100, 1)
    codes = RankCodes()
    slices = tuple(ParameterSlice("w", row * columns, (row + 1) * columns) for row in range(ROWS))
    matrix = ShardMatrix("matrix", ROWS, columns, slices)
    ranks = LocalRanks(ROWS)
    gradients = torch.randn(steps, ROWS, ROWS, columns, generator=torch.Generator().manual_seed(place.seed)).to(dtype)

    def work(rank: int) -> list[Tensor]:
        engine, pause = place.engine(ranks, rank, codes, CompressionPolicy(), sharded=True), place.pause(rank)
        outputs = []
        for number in range(steps):
            engine.start_step()
            gradient = place.late(gradients[number, rank].reshape(-1), pause)
            outputs.append(torch.empty(columns, dtype=dtype, device=place.device))
            engine.reduce_scatter("w", matrix, gradient, outputs[-1]).wait()
            pause()
        engine.state_dict()
        engine.close()
        return [output.cpu() for output in outputs]

    results = on_ranks([ranks], ROWS, work)
    oracle = ReduceScatterOracle("matrix", ["w"], [], ROWS, codes)
    for number in range(steps):
        wanted = oracle.averages([{"w": own.float()} for own in gradients[number]], number, dtype)["w"]
        got = torch.stack([outputs[number] for outputs in results])
        require_same(f"rows in step {number}", got, wanted.view_as(got))


def check_mesh(place: Place, case: dict[str, Any]) -> None:
    """Two nodes of two ranks: exact averages within them, compressed ones between them."""
    codes, policy = RankCodes(**case["thc"]), CompressionPolicy(**case["policy"])
    within, between = ([LocalRanks(NODES) for _ in range(NODES)] for _ in range(2))

    def work(rank: int) -> list[list[Tensor]]:
        node, local = divmod(rank, NODES)
        fast = SimpleNamespace(rank=lambda: local, size=lambda: NODES)
        groups = cast(Any, SimpleNamespace(size=NODES * NODES, rank=rank, fast=fast))
        inner = place.engine(between[local], node, codes, policy)
        scatter, gather = (place.communicator(within[node], local) for _ in range(2))
        agreement = RankAgreement(
            (place.communicator(within[node], local, CPU), NODES),
            (place.communicator(between[local], node, CPU), NODES),
        )
        exchange = ShardExchange(groups, scatter, gather, agreement, inner.device, in_stream=True, fused=True)
        engine = NodeEngine(inner, exchange, inner.recorder)
        averages = go(engine, place, case, rank)
        engine.close()
        return averages

    results = on_ranks([*within, *between], NODES * NODES, work)
    oracles = [RankOracle(codes, NODES, policy) for _ in range(NODES)]
    for number in range(case["steps"]):
        for buffer, everyone in enumerate(of_all_ranks(case, NODES * NODES, number)):
            wanted = mesh_average(everyone, oracles)
            for rank, averages in enumerate(results):
                what = f"average of buffer {buffer} in step {number} on rank {rank}"
                require_close_where_small(what, averages[number][buffer], wanted, everyone[0], policy.bypass_elements)


def mesh_average(everyone: list[GradientBuffer], oracles: list[RankOracle]) -> Tensor:
    """The average of a buffer; everyone[r]: of rank r. oracles: of the slow dimension, one for each shard."""
    rows = []
    for local, oracle in enumerate(oracles):
        shards = BucketShards(everyone[0], local, NODES, CPU, StatsRecorder())
        owned = []
        for node in range(NODES):
            total = torch.zeros(shards.columns)
            for mine in everyone[node * NODES : (node + 1) * NODES]:
                matrix = mine.gradient.new_zeros(NODES, shards.columns)
                shards.fill(matrix, mine.gradient)
                total += matrix[local]
            owned.append(GradientBuffer(shards.shard.key, total / NODES, shards.shard.parameters))
        rows.append(oracle.average(owned))
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
    all_checks: dict[str, Callable[[], None]] = {
        f"DDP, {RANKS} ranks, {name}": partial(check_ddp, place, case) for name, case in CASES.items()
    }
    all_checks[f"mesh of {NODES} x {NODES}"] = partial(check_mesh, place, _CASE)
    for dtype in (torch.float32, torch.bfloat16) if ON_GPU else (torch.bfloat16,):
        all_checks[f"{ROWS} rows, {dtype}"] = partial(check_rows, place, dtype)
    return all_checks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="of the pauses; all checks run with each")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin with no other seed after that")
    arguments = parser.parse_args()
    device = indexed_device(torch.device("cuda")) if ON_GPU else CPU
    failed, done, start = [], 0, time.monotonic()
    for seed in range(arguments.seeds):
        if seed and time.monotonic() - start > arguments.limit_s:
            break
        for name, check in checks(Place(device, seed)).items():
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
