"""Collects the figures while an engine works."""

from __future__ import annotations

import math

from byteps_thc._engine.statistics.stats import CompressionStats
from byteps_thc._net.recorder import PlainCollective, TrafficRecorder

_FP32_BYTES, _BF16_BYTES = 4, 2


class StatsRecorder(TrafficRecorder):
    """Adds up what the stages of an engine report; any thread may call any method. A call takes about a microsecond.

    Figures "of the last step" start at zero with step_began(), so a snapshot taken before the next step_began(), when
    all averages have arrived, has all of the step. plain: what ratios compare with;
    None: a push of the gradient.
    """

    def __init__(self, plain: PlainCollective | None = None) -> None:
        super().__init__()
        self._plain = plain or PlainCollective()
        self._steps = self._compressed = self._uncompressed = 0
        self._clear_step()

    def step_began(self) -> None:
        """Count a step and forget the figures of the one before."""
        with self._lock:
            self._steps += 1
            self._clear_step()

    def add_gradient(self, *, compressed: int = 0, uncompressed: int = 0) -> None:
        """Count coordinates that travel compressed, and coordinates that do not (small tensors, warm-up)."""
        with self._lock:
            self._compressed += compressed
            self._uncompressed += uncompressed

    def add_quantization(
        self, *, coordinates: int, clamped: int, energy: float = 0.0, lost_energy: float | None = None
    ) -> None:
        """Add what quantization did to a piece of a gradient.

        energy: |gradient + residual|^2 of the piece. lost_energy: |new residual|^2; None when no residual was kept:
        without error feedback, or because the gradient was not finite.
        """
        with self._lock:
            self._quantized += coordinates
            self._clamped += clamped
            if lost_energy is None:
                self._all_kept = False
            else:
                self._energy += energy
                self._lost_energy += lost_energy

    def add_time(self, *, encode_ms: float = 0.0, communicate_ms: float = 0.0, decode_ms: float = 0.0) -> None:
        """Add time that stages were busy, and time that nothing was left to do but wait."""
        with self._lock:
            self._encode_ms += encode_ms
            self._communicate_ms += communicate_ms
            self._decode_ms += decode_ms

    def snapshot(self) -> CompressionStats:
        """Return the figures as they are now."""
        with self._lock:
            plain = self._plain.compressed * self._compressed + self._plain.exact * self._uncompressed
            share = plain / self._sent_bytes if self._sent_bytes else math.nan
            return CompressionStats(
                steps=self._steps,
                coordinates=self._compressed,
                sent_bytes=self._sent_bytes,
                received_bytes=self._received_bytes,
                ratio=_FP32_BYTES * share,
                ratio_to_bf16=_BF16_BYTES * share,
                nmse=self._lost_energy / self._energy if self._all_kept and self._energy else math.nan,
                clamped_fraction=self._clamped / self._quantized if self._quantized else 0.0,
                residual_norm=math.sqrt(self._lost_energy),
                encode_ms=self._encode_ms,
                communicate_ms=self._communicate_ms,
                decode_ms=self._decode_ms,
                to_host_bytes=self._to_host_bytes,
                to_device_bytes=self._to_device_bytes,
                retransmissions=self._retransmissions,
                lost_chunks=self._lost_chunks,
                expected_contributions=self._expected_contributions,
                missing_contributions=self._missing_contributions,
                server_moves=self._server_moves,
                failover_losses=self._failover_losses,
            )

    def _clear_step(self) -> None:
        self._quantized = 0
        self._clamped = 0
        self._energy = 0.0
        self._lost_energy = 0.0
        self._all_kept = True
        self._encode_ms = 0.0
        self._communicate_ms = 0.0
        self._decode_ms = 0.0
