"""The compared schemes, for the decoding server, and THC for thc-ps."""

from dataclasses import dataclass

import numpy as np
import torch
from baselines import Dgc, TernGrad, TopK
from baselines.codec import VectorSpec
from baselines.config import CodecConfig
from torch import Tensor

from byteps_thc import ServerCodes

COORDINATES = 1 << 20
WORKERS = 4
#: Servers of a placement; colocated: one on each worker's host, for a quarter of the partition.
PLACEMENTS = {"one server": 1, "colocated": WORKERS}
THC = "THC"
THC_CONFIG = ServerCodes()


@dataclass(frozen=True)
class Scheme:
    """Through the decoding server. config: None: fp32, which is added as it is.

    pieces: of a server's part of the partition; each is encoded, added and answered by itself, so that with several one
    travels up while another travels down.
    """

    config: CodecConfig | None
    pieces: int = 1

    def specs(self, servers: int) -> list[VectorSpec]:
        """Specs of the partition's pieces, the first server's first."""
        count = self.pieces * servers
        return [VectorSpec.of(f"piece{i}", {f"tensor{i}": COORDINATES // count}) for i in range(count)]

    def payload_bytes(self, servers: int) -> int:
        """Bytes of one piece's payload."""
        if self.config is None:
            return COORDINATES // (self.pieces * servers) * 4
        return self.config.codec().payload_bytes(self.specs(servers)[0], 0)


#: By name: style.py knows their colours.
SCHEMES = {
    "fp32": Scheme(None),
    "fp32, 16 pieces": Scheme(None, pieces=16),
    "TopK 10 %": Scheme(TopK(ratio=0.1)),
    "DGC 10 %": Scheme(Dgc(ratio=0.1)),
    "TernGrad": Scheme(TernGrad()),
}
NAMES = (*SCHEMES, THC)
#: Their answers begin before the whole partition has arrived.
STREAMED = ("fp32, 16 pieces", THC)


def gradient_of(worker: int) -> Tensor:
    """float32[COORDINATES], a common part and one of the worker's own."""
    common, own = (np.random.default_rng(seed).standard_normal(COORDINATES, np.float32) for seed in (100, worker))
    return torch.from_numpy(common + own)
