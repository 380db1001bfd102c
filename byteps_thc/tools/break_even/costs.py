"""What averaging computes for a parameter, of this host's processor or of a GPU, with words for where that is from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from byteps_thc.tools.break_even.device_speed import DeviceSpeed
from byteps_thc.tools.break_even.speed import HostSpeed
from byteps_thc.tools.break_even.transport_speed import NOTHING, TransportSpeed


@dataclass(frozen=True)
class Costs:
    """Seconds of a rank per parameter: of bf16, of THC among all ranks, and of THC between nodes.

    source: a sentence about the numbers. on_device: whether a GPU's kernels do it. transport: a host's part of sending.
    crowd: ranks that wait for one core, at least 1.
    """

    source: str
    on_device: bool
    bf16_s: float
    flat_s: float
    two_levels_s: float
    transport: TransportSpeed = NOTHING
    crowd: float = 1.0

    @classmethod
    def of_host(cls, speed: HostSpeed, transport: TransportSpeed | None, ranks_of_node: int, crowd: float) -> Self:
        """transport: None: not measured."""
        bf16 = "not measured, since torch is not installed" if speed.bf16_s is None else f"{speed.bf16_s * 1e9:.2f}"
        threads = "1 thread" if speed.threads == 1 else f"{speed.threads} threads"
        source = (
            f"This host, {threads}, ns per parameter: encode {speed.encode_s * 1e9:.2f}, "
            f"average {speed.average_s * 1e9:.2f}, decode {speed.decode_s * 1e9:.2f}; bf16 and back {bf16}. "
        )
        if transport is None:
            source += "What sending costs was not measured."
        else:
            source += f"Ns per byte sent, by gloo: all-reduce {transport.reduce_s * 1e9:.2f}, "
            source += f"all-to-all {transport.exchange_s * 1e9:.2f}."
        if crowd > 1:
            source += f" {crowd:g} ranks wait for each core."
        flat_s = speed.compute_s
        two_levels_s = flat_s / ranks_of_node
        return cls(source, False, speed.bf16_s or 0.0, flat_s, two_levels_s, transport or NOTHING, crowd)

    @classmethod
    def of_device(cls, speed: DeviceSpeed, parameters: int, buckets: int, ranks_of_node: int) -> Self:
        """buckets: DDP's, of a model of that many parameters."""
        source = (
            f"A GPU ({speed.source}): the host's part {speed.host_s * 1e3:.3g} ms per bucket, of {buckets}; kernels "
            f"{speed.kernels_s * 1e12:.3g} ps per parameter; bf16 {speed.bf16_bucket_s * 1e3:.3g} ms per bucket."
        )
        flat_s, two_levels_s = (speed.thc_s(parameters, buckets, share) for share in (1, ranks_of_node))
        return cls(source, True, speed.bf16_s(parameters, buckets), flat_s, two_levels_s)
