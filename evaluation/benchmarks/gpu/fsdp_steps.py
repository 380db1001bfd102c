"""FSDP2 with GPU kernels: a step from end to end, and a group's cost for the host with 1, 8 and 64 ranks.

    PYTHONPATH=evaluation/benchmarks/gpu:evaluation python -P evaluation/benchmarks/gpu/fsdp_steps.py

This rank is the only real one of 8: collectives do nothing, and their results mean nothing. The measured times are the
host's and the kernels', not a network's.
"""

import time
from unittest import mock

import torch
from place import Place, Table, arguments_of, place_of
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from training import autocast, inputs_of, make_model, ms_of_steps, size_of, step_of

from byteps_thc._engine.agreement import Questions
from byteps_thc._engine.door import Opened
from byteps_thc._engine.engine import ParameterSlice, ShardMatrix
from byteps_thc._engine.factory import rank_engine
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.steps import Steps
from byteps_thc._net.communicator import Communicator, Waitable
from byteps_thc._scheme.decoding.settings import RankCodes
from byteps_thc.fsdp import compress_reduce_scatter, compressed_reduce_scatter

ROWS, FEW_ROWS = (1, 8, 64), (1, 2, 8)
PRETENDED_RANKS = 8
#: A block of the transformer.
ELEMENTS, TINY_ELEMENTS = 7_087_872, 8 * 512
ROUNDS = 10


class _Done(Waitable):
    def wait(self) -> None:
        pass


class Alone(Communicator):
    """Communicator of a single rank, whose pretended peers send the same data."""

    def max_(self, tensor: Tensor) -> Waitable:  # noqa: ARG002
        return _Done()

    def sum_(self, tensor: Tensor) -> Waitable:  # noqa: ARG002
        return _Done()

    def all_to_all(self, output: Tensor, source: Tensor) -> Waitable:
        output.view(-1).copy_(source.view(-1))
        return _Done()

    def all_gather(self, output: Tensor, source: Tensor) -> Waitable:
        output.view(-1, source.numel()).copy_(source.view(1, -1).expand(output.numel() // source.numel(), -1))
        return _Done()

    def broadcast(self, tensor: Tensor) -> Waitable:  # noqa: ARG002
        return _Done()

    def close(self) -> None:
        """Nothing is to be ended."""


def rows_engine(place: Place, ranks: int) -> FlatEngine:
    settings = RankCodes().resolve(ranks, sharded=True)
    return rank_engine(settings, 0, CompressionPolicy(), [Alone()], device=place.device, sharded=True)


def ms_of_groups(place: Place, ranks: int, elements: int) -> tuple[float, float]:
    """Milliseconds of the host, and of all, for a group of so many elements and ranks: means of ROUNDS, or of one."""
    rounds = ROUNDS if place.on_gpu else 1
    engine = rows_engine(place, ranks)
    columns = elements // ranks
    slices = tuple(ParameterSlice("w", row * columns, (row + 1) * columns) for row in range(ranks))
    matrix = ShardMatrix("matrix", ranks, columns, slices)
    gradient = torch.randn(ranks * columns, device=place.device)
    output = torch.empty(columns, device=place.device)

    def reduce() -> None:
        engine.start_step()
        engine.reduce_scatter("w", matrix, gradient, output).wait()

    for _ in range(3 if place.on_gpu else 1):
        reduce()
    place.synchronize()
    start, host_s = time.perf_counter(), 0.0
    for _ in range(rounds):
        begun = time.perf_counter()
        reduce()
        host_s += time.perf_counter() - begun
    place.synchronize()
    whole_s = time.perf_counter() - start
    engine.close()
    return 1e3 * host_s / rounds, 1e3 * whole_s / rounds


def ms_of_step(place: Place, *, compressed: bool) -> float:
    """A step of the model with every block sharded over ranks that are not there."""
    size = size_of(place)
    model, mesh = make_model(place, size), place.mesh()
    encoder = model[0]  # type: ignore[index]
    assert isinstance(encoder, nn.TransformerEncoder)
    for block in encoder.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    compression = None
    if compressed:
        engine = rows_engine(place, PRETENDED_RANKS)
        opened = Opened(engine, None, None, Steps([engine], None, log_every=0, rank=0), Questions())
        with mock.patch.object(compressed_reduce_scatter, "open_engine", return_value=opened):
            compression = compress_reduce_scatter(model)
    inputs = inputs_of(place, size)
    with autocast(place):
        step = step_of(place, model, inputs, model)
        steps, warm_up = (10, 3) if place.on_gpu else (1, 1)
        step_ms = ms_of_steps(place, step, warm_up=warm_up, steps=steps, synchronised=False)
    if compression is not None:
        compressed_elements = compression.compression_stats().coordinates
        compression.close()
        assert compressed_elements > 0, "torch reduced nothing through the engine"
    return step_ms


def main() -> None:
    arguments = arguments_of(__doc__)
    table = Table(arguments.json, ["FSDP2, without a network", "ms", "ms of the host"])
    with place_of(arguments, PRETENDED_RANKS) as place:
        elements = ELEMENTS if place.on_gpu else TINY_ELEMENTS
        for ranks in ROWS if place.on_gpu else FEW_ROWS:
            host_ms, whole_ms = ms_of_groups(place, ranks, elements)
            table.add(f"a group of {elements // ranks * ranks} parameters, {ranks} ranks", whole_ms, host_ms)
        for compressed in (False, True):
            what = "THC" if compressed else "fp32"
            table.add(f"a step of 1 of {PRETENDED_RANKS} ranks, {what}", ms_of_step(place, compressed=compressed), None)


if __name__ == "__main__":
    main()
