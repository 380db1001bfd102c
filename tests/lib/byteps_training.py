"""A model whose gradients are known beforehand, and the averages that THC must give for them."""

import random
import zlib
from collections.abc import Mapping, Sequence

import torch
from server_oracle import ServerOracle
from torch import Tensor

from byteps_thc import ServerCodes
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc.torch.lanes.lane import make_lanes
from byteps_thc.torch.optimizer.place import NamedParameter

#: In forward order: sizes above and below a partition, odd ones, small ones, every dtype.
SHAPES: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    "first": ((200, 150), torch.float32),
    "first.bias": ((150,), torch.float32),
    "half": ((3000,), torch.float16),
    "middle": ((64, 80, 5), torch.float32),
    "brain": ((5000,), torch.bfloat16),
    "double": ((40,), torch.float64),
    "last": ((33_000,), torch.float32),
    "tail": ((7,), torch.float16),
}
CONFIG = ServerCodes(partition_bytes=64 << 10, rotation_block=4096, seed=3, error_feedback=True)
BYPASS_ELEMENTS = 1024
#: Parameters whose rows have scales of their own; rows of 400 elements do not end where rotation blocks do.
ROWS = ("middle",)
#: (step, worker) -> parameters that this worker does not use in that step.
UNUSED = {(2, 1): ("middle",), (3, 0): ("half", "tail"), (3, 1): ("half", "tail")}


def new_parameters() -> dict[str, torch.nn.Parameter]:
    return {name: torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for name, (shape, dtype) in SHAPES.items()}


def gradient_of(name: str, step: int, worker: int) -> Tensor:
    shape, dtype = SHAPES[name]
    if name in UNUSED.get((step, worker), ()):
        return torch.zeros(shape, dtype=dtype)
    seed = zlib.crc32(f"{name} {step} {worker}".encode())
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def backward(parameters: Mapping[str, Tensor], step: int, worker: int) -> None:
    """Add gradient_of() to every .grad, in an order that is another one on every worker and in every step."""
    names = [name for name in parameters if name not in UNUSED.get((step, worker), ())]
    random.Random(f"{step} {worker}").shuffle(names)
    loss = sum((parameters[name] * gradient_of(name, step, worker)).sum().float() for name in names)
    assert isinstance(loss, Tensor)
    loss.backward()  # type: ignore[no-untyped-call]


class Oracle:
    """Averages of all workers' gradients, computed in this process by the compressors of all workers, one by one."""

    def __init__(self, workers: int, lanes: int) -> None:
        named = [NamedParameter(name, p, i) for i, (name, p) in enumerate(new_parameters().items())]
        compressed = [p for p in named if p.tensor.dtype != torch.float64]
        self._workers = workers
        self._lanes = make_lanes(compressed, lanes, CompressionPolicy(bypass_elements=BYPASS_ELEMENTS, rows=ROWS))
        self._servers = ServerOracle(CONFIG, workers)
        #: buffers that each lane has sent so far: the round of the next one
        self.rounds = [0] * len(self._lanes)

    def with_lanes(self, lanes: int) -> "Oracle":
        """Return an oracle that continues with another number of lanes; residuals stay here, too."""
        other = Oracle(self._workers, lanes)
        other._servers = self._servers
        other.rounds = [max(self.rounds)] * len(other._lanes)
        return other

    @property
    def cost(self) -> float:
        """The table's expected squared error of a coordinate, in units of its variance."""
        return self._servers.compressors[0].table.cost

    def average(self, gradients: Sequence[Mapping[str, Tensor]], *, compress: bool = True) -> dict[str, Tensor]:
        """Return the averages of one step. gradients: of every worker, by name."""
        averages = {name: _exact([own[name] for own in gradients]) for name in gradients[0]}
        for number, lane in enumerate(self._lanes):
            for layout in lane.buffers:
                if layout.compressed and compress:
                    name = layout.parameters[0].name
                    flat = [own[name].reshape(-1) for own in gradients]
                    average = torch.zeros_like(flat[0])
                    self._servers.average_in_pieces(layout.key, flat, self.rounds[number], layout.plan, average)
                    averages[name] = average.view(gradients[0][name].shape)
                self.rounds[number] += 1
        return averages

    def residual(self, worker: int, name: str) -> Tensor:
        residual = self._servers.residual(worker, name)
        assert residual is not None
        return torch.from_numpy(residual)


def _exact(gradients: list[Tensor]) -> Tensor:
    wide = torch.float64 if gradients[0].dtype == torch.float64 else torch.float32
    total = sum(gradient.to(wide) for gradient in gradients)
    assert isinstance(total, Tensor)
    return (total / len(gradients)).to(gradients[0].dtype)
