"""Averages of n workers in one process, on the package's own compressors and sums, for simulated training.

averager = make(RankCodes(), workers=4, tensors=training.tensors)
average = averager.average(gradients)              # float32[workers, coordinates] -> float32[coordinates]
averager.bytes_both_ways                           # of a worker and step: sent and received, headers apart
"""

import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from baselines import Bf16, NoCompression
from baselines.codec import Codec, EncodeContext, VectorSpec
from baselines.config import CodecConfig
from baselines.dense import DenseConfig
from baselines.memory import ErrorFeedback, Memory, NoMemory
from torch import Tensor
from typing_extensions import override

from averages.alternatives import TwoHops
from averages.eden import Eden, EdenAverager
from averages.power_sgd import PowerSgd, PowerSgdAverager
from averages.ranks import RankCodes, RanksAverager
from averages.servers_averager import ServersAverager
from byteps_thc import ServerCodes

Scheme = ServerCodes | RankCodes | Eden | TwoHops | DenseConfig | CodecConfig | PowerSgd
FP32, BF16 = NoCompression(), Bf16()


class Averager(Protocol):
    """Keeps residuals and momenta from step to step. bytes_both_ways: see the module."""

    bytes_both_ways: float

    def average(self, gradients: Tensor) -> Tensor: ...


class Dense(Averager):
    """Averages in fp32, or in another type, to which each worker rounds before the sum."""

    def __init__(self, config: DenseConfig, coordinates: int) -> None:
        self._dtype = config.dtype
        self.bytes_both_ways = 2.0 * coordinates * self._dtype.itemsize

    @override
    def average(self, gradients: Tensor) -> Tensor:
        narrow = (gradients / len(gradients)).to(self._dtype)
        total = narrow[0]
        for own in narrow[1:]:
            total = total + own
        return total.float()


class Thc(Averager):
    """Averages through a server or switch that only adds: sums of 8 or 16 bits."""

    def __init__(self, config: ServerCodes, workers: int, coordinates: int) -> None:
        resolved = config.resolve(workers)
        self._servers = ServersAverager(resolved, coordinates)
        bits = resolved.table.bits + resolved.value_bits + 2 * 32 / config.rotation_block
        self.bytes_both_ways = self._servers.partitions[0].padded * bits / 8

    @override
    def average(self, gradients: Tensor) -> Tensor:
        return self._servers.average(gradients)


class Hops(Averager):
    """Two quantizers, one a hop. Random numbers are the same in each training."""

    #: A multiple of all groups.
    _PADDED = 512

    def __init__(self, scheme: TwoHops, coordinates: int) -> None:
        self._scheme, self._random = scheme, np.random.default_rng(1)
        self.bytes_both_ways = (scheme.bits_up + scheme.bits_down) / 8 * coordinates

    @override
    def average(self, gradients: Tensor) -> Tensor:
        coordinates = gradients.shape[1]
        own = np.pad(gradients.double().numpy(), ((0, 0), (0, -coordinates % self._PADDED)))
        return torch.from_numpy(self._scheme.average(own, self._random)[:coordinates]).float()


class Baseline(Averager):
    """A codec, through a server that decodes all payloads and encodes their average anew (paper, section 2).

    If workers keep their losses, the server keeps its own for its next average (DoubleSqueeze, Tang et al., ICML 2019).
    """

    def __init__(
        self, config: CodecConfig, workers: int, tensors: Sequence[slice], down: CodecConfig | None = None
    ) -> None:
        """down: the server's codec for the average; None: config, too."""
        self._codec, self._down = config.codec(), (down or config).codec()
        sizes = {f"tensor{i}": span.stop - span.start for i, span in enumerate(tensors)}
        self._spec = VectorSpec.of("gradient", sizes)
        self._memories = [config.memory(workers) for _ in range(workers)]
        forgets = isinstance(self._memories[0], NoMemory)
        self._server: Memory = NoMemory() if forgets else ErrorFeedback()
        self._step = 0
        up, back = (float(codec.payload_bytes(self._spec, self._step)) for codec in (self._codec, self._down))
        self.bytes_both_ways = up + back

    @override
    def average(self, gradients: Tensor) -> Tensor:
        decoded = []
        for worker, (own, memory) in enumerate(zip(gradients, self._memories, strict=True)):
            decoded.append(self._through(self._codec, own, memory, worker))
        average = self._through(self._down, self._codec.combine(decoded), self._server, len(gradients))
        self._step += 1
        return average

    def _through(self, codec: Codec, vector: Tensor, memory: Memory, worker: int) -> Tensor:
        """The vector as it arrives on the other side."""
        state = memory.compensate(vector, self._spec)
        context = EncodeContext(worker=worker, round=self._step, step=self._step)
        payload = codec.encode(state.vector.contiguous(), self._spec, context)
        sent = codec.decode(payload, self._spec, self._step)
        memory.keep(state, sent)
        return sent


class SmallExactly(Averager):
    """Averages small tensors in fp32, and all others, moved together, by a separate averager.

    bypass_elements: tensors with fewer elements are small, as in CompressionPolicy. Others as of make().
    """

    def __init__(
        self,
        scheme: Scheme,
        workers: int,
        tensors: Sequence[slice],
        shapes: Sequence[torch.Size],
        bypass_elements: int,
    ) -> None:
        large = [span.stop - span.start >= bypass_elements for span in tensors]
        kept = list(itertools.compress(tensors, large))
        self._large = torch.zeros(tensors[-1].stop, dtype=torch.bool)
        for span in kept:
            self._large[span] = True
        ends = itertools.accumulate((span.stop - span.start for span in kept), initial=0)
        moved = [slice(start, stop) for start, stop in itertools.pairwise(ends)]
        self._averager = make(scheme, workers, moved, shapes=list(itertools.compress(shapes, large)))
        self.bytes_both_ways = self._averager.bytes_both_ways + 2.0 * 4 * int((~self._large).sum())

    @override
    def average(self, gradients: Tensor) -> Tensor:
        average = gradients.mean(dim=0)
        average[self._large] = self._averager.average(gradients[:, self._large])
        return average


def make(
    scheme: Scheme,
    workers: int,
    tensors: Sequence[slice],
    *,
    shapes: Sequence[torch.Size] | None = None,
    bypass_elements: int = 0,
) -> Averager:
    """Make the averager of a scheme.

    scheme: ServerCodes: THC through servers. RankCodes: THC among ranks. TwoHops: other quantizers.
    tensors: where each lies in a gradient, one after the other. shapes: for PowerSGD alone, which needs them; without
    them a tensor is one row, and travels whole. bypass_elements: see SmallExactly.
    """
    shapes = shapes or [torch.Size([1, span.stop - span.start]) for span in tensors]
    if bypass_elements:
        return SmallExactly(scheme, workers, tensors, shapes, bypass_elements)
    if isinstance(scheme, PowerSgd):
        return PowerSgdAverager(scheme, shapes)
    if isinstance(scheme, RankCodes):
        return RanksAverager(scheme, tensors, workers)
    if isinstance(scheme, Eden):
        return EdenAverager(scheme, tensors)
    coordinates = tensors[-1].stop
    if isinstance(scheme, ServerCodes):
        return Thc(scheme, workers, coordinates)
    if isinstance(scheme, TwoHops):
        return Hops(scheme, coordinates)
    if isinstance(scheme, CodecConfig):
        return Baseline(scheme, workers, tensors)
    return Dense(scheme, coordinates)
