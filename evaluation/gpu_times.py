"""Compute when THC on GPUs is faster than torch's bf16 hook: for the tables of docs/gpu.md.

    python evaluation/gpu_times.py      # compiles the kernels, a minute

Nothing here is a measurement of the kernels. Times follow from instructions and bytes of the kernels, and from these
measurements of an H100 (evaluation/benchmarks.md): its memcpy, and the servers' encode kernel without error feedback,
whose limit are instructions, too. Other numbers are assumptions: 92 % of a link's rate, 80 % of NVLink's 450 GB/s, and
30 us for the latency of a collective.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from link_bytes import link_bytes

from byteps_thc._scheme.block_plan import BLOCK, TILE

#: Coordinates of a bucket of 25 MiB, and of a program.
BUCKET, PROGRAM = 25 * 2**20 // 4, 32 * BLOCK
#: Measured: coordinates of the servers' encode kernel and its seconds, bytes of a memcpy per second.
MEASURED = "encode, no error feedback"
MEASURED_COORDINATES, MEASURED_S, COPIED_BYTES_PER_S = 2**27, 387.1e-6, 2.97e12
#: Schedulers of an H100's 132 multiprocessors. Each has warps of its own.
SCHEDULERS = 4 * 132
LATENCY_S, LINE, NVLINK_BYTES_PER_S = 30e-6, 0.92, 0.8 * 450e9
#: The host's time for a bucket, beyond the time in the bf16 hook, if backward waits for the host. An earlier engine
#: took .72 to .89 ms for 5 launches and 4 collectives (measured, H200). Three and two take five ninths (computed).
EXPOSED_S = (0.0, 0.45e-3, 0.75e-3)
#: Bytes of a coordinate: in a float32 gradient, in codes of 4 bits with scales, in tables of blocks.
_FLOAT, _CODE, _TABLE = 4, 4 / 8 + (TILE + 1) / (TILE * BLOCK), 8 / BLOCK + 16 / PROGRAM

Seconds = Callable[[float], float]
"""The time of a bucket by the bandwidth of a link, in bits per second."""


@dataclass(frozen=True)
class Kernels:
    """Kernels by their instructions for a coordinate (gpu_resources.py)."""

    instructions: Mapping[str, float]

    def _seconds(self, name: str, coordinates: float, moved_bytes: float, more: float = 0.0) -> float:
        """Return the time for so many coordinates. more: instructions beyond the kernel's code.

        A scheduler runs its share of the programs. Memory may take longer than instructions.
        """
        measured = self.instructions[MEASURED] * MEASURED_COORDINATES / MEASURED_S
        programs = -(-coordinates // PROGRAM)
        share = -(-programs // SCHEDULERS) * PROGRAM * SCHEDULERS
        return max(share * (self.instructions[name] + more) / measured, moved_bytes / COPIED_BYTES_PER_S)

    def encode_s(self, coordinates: float) -> float:
        return self._seconds("blocks, encode", coordinates, coordinates * (_FLOAT + _CODE + _TABLE))

    def recode_s(self, coordinates: float, ranks: int) -> float:
        """Return the time for the own shard. A loop adds the codes of each rank after the first one."""
        turn = self.instructions["blocks, average of rows"] - self.instructions["blocks, decode"]
        moved_bytes = coordinates * (_CODE + (_CODE + _TABLE) / ranks)
        return self._seconds("blocks, recode", coordinates / ranks, moved_bytes, (ranks - 2) * turn)

    def decode_s(self, coordinates: float) -> float:
        return self._seconds("blocks, decode", coordinates, coordinates * (_FLOAT + _CODE + _TABLE))

    def bucket_s(self, coordinates: float, ranks: int) -> float:
        return self.encode_s(coordinates) + self.recode_s(coordinates, ranks) + self.decode_s(coordinates)


@dataclass(frozen=True)
class Cluster:
    """nodes with so many GPUs each. Bandwidths are for all network cards of a node together."""

    nodes: int
    gpus: int

    def bf16_s(self, bits_per_s: float) -> float:
        """A ring all-reduce, with casts before and behind. NVLink and the network work at the same time."""
        ranks = self.nodes * self.gpus
        within_s = 4 * (ranks - 1) / ranks / NVLINK_BYTES_PER_S if self.gpus > 1 else 0.0
        between_s = link_bytes([self.gpus] * self.nodes).bf16 * 8 / (bits_per_s * LINE)
        casts_s = 2 * (_FLOAT + 2) / COPIED_BYTES_PER_S
        return LATENCY_S + BUCKET * (casts_s + max(within_s, between_s))

    def thc_s(self, kernels: Kernels, exposed_s: float, bits_per_s: float) -> float:
        """Two collectives. Several GPUs of a node first exchange float32, and the averages of shards last."""
        sent = link_bytes([self.gpus] * self.nodes).two_levels * _CODE / 0.5
        network_s = 2 * LATENCY_S + BUCKET * sent * 8 / (bits_per_s * LINE)
        return exposed_s + network_s + kernels.bucket_s(BUCKET / self.gpus, self.nodes) + self.within_s()

    def within_s(self) -> float:
        """Parts are copied to shards and back, and a node's shards are added."""
        if self.gpus == 1:
            return 0.0
        moved = 2 * _FLOAT * (self.gpus - 1) / self.gpus / NVLINK_BYTES_PER_S
        copied = (4 * _FLOAT + _FLOAT + _FLOAT / self.gpus) / COPIED_BYTES_PER_S
        return 2 * LATENCY_S + BUCKET * (moved + copied)


def break_even(fast: Seconds, other: Seconds) -> float:
    """Return the bandwidth below which `fast` is faster than `other`, which sends more."""
    low, high = 1e6, 1e15
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if fast(middle) < other(middle) else (low, middle)
    return low


CLUSTERS = [
    (Cluster(8, 1), "GPU", (25e9, 100e9, 400e9)),
    (Cluster(8, 8), "host", (100e9, 400e9, 3200e9)),
]


def times(kernels: Kernels) -> Iterator[list[str]]:
    """Yield rows: link, bf16, THC by EXPOSED_S, in ms."""
    for cluster, what, bandwidths in CLUSTERS:
        for bandwidth in bandwidths:
            thc = [cluster.thc_s(kernels, exposed, bandwidth) for exposed in EXPOSED_S]
            cells = [f"{1e3 * seconds:.2f}" for seconds in (cluster.bf16_s(bandwidth), *thc)]
            yield [f"{bandwidth / 1e9:.0f} Gb/s per {what}", *cells]


def limits(kernels: Kernels) -> Iterator[list[str]]:
    """Yield rows: unit, bandwidths below which THC is faster than bf16, by EXPOSED_S.

    Assumptions decide above 1 Tb/s.
    """
    for cluster, what, _ in CLUSTERS:
        found = [break_even(partial(cluster.thc_s, kernels, exposed), cluster.bf16_s) for exposed in EXPOSED_S]
        cells = ["over 1000" if limit > 1e12 else f"{round(limit / 1e9, -1):.0f}" for limit in found]
        yield [f"Gb/s per {what}", *cells]


def main() -> None:
    """Compile, and print the tables."""
    import gpu_resources

    wanted = (MEASURED, "blocks, encode", "blocks, recode", "blocks, decode", "blocks, average of rows")
    compiled = [kernel for kernel in gpu_resources.kernels() if kernel.name in wanted]
    rows = [gpu_resources.measure(each, gpu_resources.compile_kernel(each, "sm_90")) for each in compiled]
    kernels = Kernels({row.kernel: row.instructions_per_coordinate for row in rows})
    print("instructions a coordinate:", kernels.instructions)
    parts = [kernels.encode_s(BUCKET), kernels.recode_s(BUCKET, 8), kernels.decode_s(BUCKET)]
    print("us of encode, recode, decode among 8 ranks:", *(f"{1e6 * seconds:.0f}" for seconds in parts))
    for row in (*times(kernels), *limits(kernels)):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
