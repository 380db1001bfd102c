"""Effects of compression on a training run: figures of one rank. No torch needed."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Literal

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._net.transport import PlainCollective, TrafficRecorder

_FP32_BYTES, _BF16_BYTES = 4, 2


@dataclass(frozen=True)
class CompressionStats:
    """Statistics of one rank since its engine began, unless a field says otherwise.

    nmse is the quantization error of this rank. The average has a smaller error, because the errors of n ranks partly
    cancel, and error feedback returns the loss of a step in later steps.
    """

    steps: int = 0
    """Number of steps."""
    coordinates: int = 0
    """Coordinates of all gradients that travelled compressed."""
    sent_bytes: int = 0
    """Payload bytes sent by this rank: norms, codes and uncompressed tensors, to thc-ps and switches also headers."""
    received_bytes: int = 0
    """Payload bytes received by this rank, with headers as in sent_bytes."""
    ratio: float = math.nan
    """Bytes of the same collective in fp32 without compression, divided by sent_bytes. NaN before the first bytes.
    Among n ranks the collective is a ring all-reduce (2 (n - 1) / n gradients), with FSDP2 a reduce-scatter (half as
    much), with servers one push of the gradient."""
    ratio_to_bf16: float = math.nan
    """Bytes of the same collective in bf16, divided by sent_bytes: half of ratio."""
    nmse: float = math.nan
    """Last step: |lost|^2 / |gradient + residual|^2. NaN without error feedback, or if gradients are not finite."""
    clamped_fraction: float = 0.0
    """Last step: share of the compressed coordinates beyond the clamp."""
    residual_norm: float = 0.0
    """Last step: Euclidean norm of the residuals of error feedback."""
    encode_ms: float = 0.0
    """Last step: milliseconds that the encoding stages were busy; other stages may overlap."""
    communicate_ms: float = 0.0
    """Last step: milliseconds spent only waiting for the network."""
    decode_ms: float = 0.0
    """Last step: milliseconds that the decoding stage was busy."""
    to_host_bytes: int = 0
    """Bytes copied from a GPU to host memory: codes and norms, or whole gradients if the host compresses them."""
    to_device_bytes: int = 0
    """Bytes copied from host memory to a GPU: sums and norms, or whole averages."""
    retransmissions: int = 0
    """Packets sent again (servers)."""
    lost_chunks: int = 0
    """Lost packets, whose coordinates count as zero (servers, loss-tolerant)."""
    expected_contributions: int = 0
    """Contributions of all workers to all packets of sums (servers)."""
    missing_contributions: int = 0
    """Contributions missing in the sums of this rank: lost with a packet, or too late for the quorum (servers)."""
    server_moves: int = 0
    """Number of times that all ranks switched to other servers (servers)."""
    failover_losses: int = 0
    """1 if this rank has lost the process group's store and can no longer fail over (servers).
    A server that fails then ends the training."""

    def as_dict(self) -> dict[str, float]:
        """Return all statistics by name, for loggers: wandb.log(state.compression_stats().as_dict())."""
        return asdict(self)

    def __str__(self) -> str:
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


class StatsRecorder(TrafficRecorder):
    """Adds up the reports of an engine's stages; any thread may call any method. A call takes about a microsecond.

    Figures "of the last step" start at zero with step_began(), so a snapshot before the next step_began(), once all
    averages have arrived, has all of the step. plain: base of the ratios; None: a push of the gradient.
    """

    def __init__(self, plain: PlainCollective | None = None) -> None:
        super().__init__()
        self._plain = plain or PlainCollective()
        self._uncompressed = 0
        self._clear_step()

    def step_began(self) -> None:
        with self._lock:
            self._counts["steps"] += 1
            self._clear_step()

    def add_gradient(self, *, compressed: int = 0, uncompressed: int = 0) -> None:
        """Count coordinates that travel compressed, and coordinates that do not (small tensors, warm-up)."""
        with self._lock:
            self._counts["coordinates"] += compressed
            self._uncompressed += uncompressed

    def add_quantization(
        self, *, coordinates: int, clamped: int, energy: float = 0.0, lost_energy: float | None = None
    ) -> None:
        """Add the quantization figures of a piece.

        energy: |gradient + residual|^2 of the piece. lost_energy: |new residual|^2; None if no residual was kept.
        """
        with self._lock:
            self._quantized += coordinates
            self._clamped += clamped
            if lost_energy is None:
                self._all_kept = False
            else:
                self._energy += energy
                self._lost_energy += lost_energy

    def add_time(self, figure: Literal["encode_ms", "communicate_ms", "decode_ms"], time_ms: float) -> None:
        """Add time that stages were busy, or only waited."""
        with self._lock:
            self._times[figure] += time_ms

    def snapshot(self) -> CompressionStats:
        with self._lock:
            plain = self._plain.compressed * self._counts["coordinates"] + self._plain.exact * self._uncompressed
            sent_bytes = self._counts["sent_bytes"]
            share = plain / sent_bytes if sent_bytes else math.nan
            derived = CompressionStats(
                ratio=_FP32_BYTES * share,
                ratio_to_bf16=_BF16_BYTES * share,
                nmse=self._lost_energy / self._energy if self._all_kept and self._energy else math.nan,
                clamped_fraction=self._clamped / self._quantized if self._quantized else 0.0,
                residual_norm=math.sqrt(self._lost_energy),
                encode_ms=self._times["encode_ms"],
                communicate_ms=self._times["communicate_ms"],
                decode_ms=self._times["decode_ms"],
            )
            return replace(derived, **self._counts)

    def _clear_step(self) -> None:
        self._quantized = self._clamped = 0
        self._energy = self._lost_energy = 0.0
        self._all_kept = True
        self._times = {"encode_ms": 0.0, "communicate_ms": 0.0, "decode_ms": 0.0}


def require_log_interval(every: object) -> None:
    if not isinstance(every, int) or every < 0:
        raise ConfigurationError(f"log_every must be 0 (never) or a number of steps, not {every!r}")


class WorkClock:
    """Measures the time in which buffers are in flight and no thread computes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_flight = self._busy = 0
        self._idle_s = self._since = 0.0

    def buffers(self, change: int) -> None:
        """Count buffers that enter (+) or leave (-) the engine."""
        with self._lock:
            self._account()
            self._in_flight += change

    @contextmanager
    def timed(self, recorder: StatsRecorder, figure: Literal["encode_ms", "decode_ms"]) -> Iterator[None]:
        """Count the block as work, and report its time as that figure unless it raises."""
        with self._lock:
            self._account()
            self._busy += 1
        start = time.perf_counter()
        try:
            yield
            recorder.add_time(figure, (time.perf_counter() - start) * 1e3)
        finally:
            with self._lock:
                self._account()
                self._busy -= 1

    def take_idle_ms(self) -> float:
        with self._lock:
            self._account()
            idle_s, self._idle_s = self._idle_s, 0.0
            return idle_s * 1e3

    def _account(self) -> None:
        now = time.perf_counter()
        if self._in_flight and not self._busy:
            self._idle_s += now - self._since
        self._since = now
