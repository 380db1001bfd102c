"""The figures of one rank's compression."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class CompressionStats:
    """Compression on one rank, since its engine began unless a field says otherwise.

    nmse is this rank's own quantization error. That of the average is smaller, because the errors of n ranks partly
    cancel, and error feedback puts back in later steps what one step lost.
    """

    steps: int = 0
    coordinates: int = 0
    """of all gradients that travelled compressed"""
    sent_bytes: int = 0
    """payload of this rank: norms, codes, aggregates and tensors that travel uncompressed; no packet headers"""
    received_bytes: int = 0
    ratio: float = math.nan
    """bytes that the same collective sends without compression, in fp32, / sent_bytes: 1 without compression; NaN
    before anything was sent. Among n ranks the collective is a ring all-reduce, 2 (n - 1) / n times a gradient, with
    FSDP2 a reduce-scatter, half of that; to servers a push of the gradient"""
    ratio_to_bf16: float = math.nan
    """the same in bf16 / sent_bytes: half of ratio"""
    nmse: float = math.nan
    """last step: |lost|^2 / |gradient + residual|^2; NaN without error feedback, or if gradients are not finite"""
    clamped_fraction: float = 0.0
    """last step: share of the compressed coordinates beyond the clamp"""
    residual_norm: float = 0.0
    """last step: Euclidean norm of what error feedback keeps for the next step"""
    encode_ms: float = 0.0
    """last step: time the encoding stages were busy, which may overlap with other stages"""
    communicate_ms: float = 0.0
    """last step: time with nothing to do but wait for the network"""
    decode_ms: float = 0.0
    """last step: time the decoding stage was busy"""
    to_host_bytes: int = 0
    """copied from a GPU to host memory: codes and norms, or whole gradients where the host compresses them"""
    to_device_bytes: int = 0
    """copied from host memory to a GPU: sums and norms, or whole averages"""
    retransmissions: int = 0
    """packets sent again (network engine)"""
    lost_chunks: int = 0
    """packets whose coordinates were given up and count as zero (network engine)"""
    expected_contributions: int = 0
    """of all workers to all packets of sums (network engine)"""
    missing_contributions: int = 0
    """those that are not in the sums which this rank has: lost on their way up, with the packet of sums, or too late
    for the quorum"""
    server_moves: int = 0
    """times that all ranks went on with other servers, as one was gone or came back (network engine)"""
    failover_losses: int = 0
    """1 if this rank has lost the process group's store and can no longer fail over, so that a server that goes ends
    the training (network engine)"""

    def as_dict(self) -> dict[str, float]:
        """Return all figures by name, for loggers: wandb.log(state.compression_stats().as_dict())."""
        return asdict(self)

    def __str__(self) -> str:
        """One line for people."""
        with_residuals = not math.isnan(self.nmse)
        error = f"NMSE {self.nmse:.3g}, " if with_residuals else ""
        residual = f"residual norm {self.residual_norm:.3g}, " if with_residuals else ""
        return (
            f"step {self.steps}: ratio {self.ratio:.2f} to fp32, {self.ratio_to_bf16:.2f} to bf16, {error}"
            f"clamped {100 * self.clamped_fraction:.2f}%, {residual}"
            f"encode {self.encode_ms:.1f} ms, communicate {self.communicate_ms:.1f} ms, "
            f"decode {self.decode_ms:.1f} ms, "
            f"{self.retransmissions} retransmissions, {self.lost_chunks} lost chunks"
            + (f", {self.server_moves} moves to other servers" if self.server_moves else "")
            + (", cannot fail over any more" if self.failover_losses else "")
        )
