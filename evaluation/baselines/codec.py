"""A baseline's algorithm as a codec, which turns a vector into bytes and back and keeps nothing.

    payload = codec.encode(vector, spec, context)         # uint8, the same size on all workers
    vectors = [codec.decode(payload, spec, context.step) for payload in payloads of all workers]
    average = codec.combine(vectors)

Payloads of codecs can't be added (they are not homomorphic), so an aggregator has to decode every payload. THC avoids
this cost (paper, section 2).
"""

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class VectorSpec:
    """Parameters that lie in a flat vector without gaps; the same on all workers.

    key: names the vector. sizes: elements of each parameter, at least one.
    """

    key: str
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, key: str, sizes: Mapping[str, int]) -> "VectorSpec":
        """Lay out parameters of the given names and sizes."""
        return cls(key, tuple(sizes.values()))

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """Each parameter's place in the vector."""
        return tuple(slice(*ends) for ends in itertools.pairwise(itertools.accumulate(self.sizes, initial=0)))

    @cached_property
    def size(self) -> int:
        """Elements of the vector."""
        return sum(self.sizes)


@dataclass(frozen=True)
class EncodeContext:
    """When and where a vector is encoded: random numbers and schedules depend on nothing else.

    worker: the encoder. round: number of the vector, never the same twice in a training. step: optimizer steps since
    compression began.
    """

    worker: int
    round: int
    step: int

    def uniform(self, seed: int, spec: VectorSpec, device: torch.device) -> Tensor:
        """Return random float32[spec.size] in [0, 1), others for every (seed, worker, round, spec.key)."""
        words = f"{seed} {self.worker} {self.round} {spec.key}".encode()
        digest = hashlib.blake2b(words, digest_size=8).digest()
        generator = torch.Generator(device).manual_seed(int.from_bytes(digest, "little"))
        return torch.rand(spec.size, generator=generator, device=device)


class Codec(ABC):
    """One scheme's encoder and decoder. Vectors are float32, 1-D and contiguous, on any device.

    A vector that is not finite decodes to one that is not: NaN and infinity must reach the GradScaler.
    """

    @abstractmethod
    def payload_bytes(self, spec: VectorSpec, step: int) -> int:
        """Return the size of every worker's payload in that step."""

    @abstractmethod
    def encode(self, vector: Tensor, spec: VectorSpec, context: EncodeContext) -> Tensor:
        """Return the payload, uint8[payload_bytes]. `vector` is not modified."""

    @abstractmethod
    def decode(self, payload: Tensor, spec: VectorSpec, step: int) -> Tensor:
        """Return float32[spec.size], what a payload of that step says of the vector."""

    def combine(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the average of the workers' vectors, added in the order of the workers."""
        total = vectors[0].clone()
        for vector in vectors[1:]:
            total += vector
        return total.div_(len(vectors))


def join_payload(floats: Tensor, rest: Tensor) -> Tensor:
    """Return float32 and then other numbers as one run of bytes: uint8[4 * len(floats) + bytes of rest]."""
    return torch.cat([floats.view(torch.uint8), rest.view(torch.uint8)])


def split_payload(payload: Tensor, floats: int) -> tuple[Tensor, Tensor]:
    """Return the float32[floats] at the start of a payload, and the bytes after them."""
    # Copied, because a payload in a larger tensor may start at any byte.
    return payload[: 4 * floats].clone().view(torch.float32), payload[4 * floats :]
