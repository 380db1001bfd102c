"""Settings and results of a run of the demo. Free of torch, so that `thc --help` is fast."""

import enum
from dataclasses import dataclass, field
from typing import Literal

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.limits import Bits, require_packet_workers
from byteps_thc._base.wire.layout import SWITCH_CODES_PER_PACKET
from byteps_thc._scheme.adding.server_codes import ServerCodes

#: Processes on one host; more only compete for its cores.
MAX_SERVERS = 16
#: At 5 Mb/s, 160 steps of fp32 take about ten minutes. No processor fills links above the other limit.
MIN_LINK_MBIT, MAX_LINK_MBIT = 5, 100_000


class Scheme(enum.StrEnum):
    """How the workers average their gradients."""

    FP32 = "fp32"
    UNIFORM_THC = "uniform-thc"
    THC = "thc"
    BF16 = "bf16"
    THC_RANKS = "thc-ranks"

    @property
    def job(self) -> int:
        """Job ID at the aggregators."""
        return list(Scheme).index(self)

    @property
    def label(self) -> str:
        """Name in tables and plots."""
        return _LABELS[self]

    @property
    def through_aggregators(self) -> bool:
        """Whether servers or switches make the sums."""
        return self in (Scheme.THC, Scheme.UNIFORM_THC)


_LABELS = {
    Scheme.FP32: "fp32",
    Scheme.BF16: "bf16",
    Scheme.THC: "THC",
    Scheme.THC_RANKS: "THC among ranks",
    Scheme.UNIFORM_THC: "Uniform THC",
}
#: Runs of `thc demo`, by packet I/O: nobody deploys ranks without servers because of DPDK.
DEFAULT_SCHEMES: dict[str, tuple[Scheme, ...]] = {
    "udp": (Scheme.FP32, Scheme.BF16, Scheme.THC, Scheme.THC_RANKS),
    "dpdk": (Scheme.FP32, Scheme.THC),
}


def schemes_of(text: str | None, backend: str) -> tuple[Scheme, ...]:
    """Read --schemes. Raises ConfigurationError for unknown names.

    text: names with commas; None: the backend's default.
    backend: "udp" or "dpdk".
    """
    if text is None:
        return DEFAULT_SCHEMES[backend]
    try:
        schemes = tuple(Scheme(name.strip()) for name in text.split(","))
    except ValueError:
        raise ConfigurationError(f"--schemes: names out of {', '.join(Scheme)}, with commas, not {text!r}") from None
    if len(set(schemes)) < len(schemes):
        raise ConfigurationError(f"--schemes {text} names a scheme twice")
    return schemes


@dataclass(frozen=True)
class DemoSettings:
    """Options of `thc demo`. Raises ConfigurationError where they cannot work."""

    workers: int = 4
    steps: int = 300
    #: sequences per worker and step
    batch_size: int = 8
    #: characters of a sequence
    context: int = 64
    #: transformer blocks of the model, attention heads, width of a position's vector
    layers: int = 4
    heads: int = 4
    width: int = 144
    learning_rate: float = 5e-3
    seed: int = 1
    #: bits of a code
    bits: Bits = 4
    granularity: int | Literal["auto"] = "auto"
    #: probability mass outside the clamp; None: chosen with the granularity
    p: float | None = None
    loss_tolerant: bool = False
    #: probability with which thc-ps loses a packet, each way
    drop: float = 0.0
    codes_per_packet: int | Literal["auto"] = "auto"
    backend: Literal["udp", "dpdk"] = "udp"
    servers: int = 1
    #: Mb/s of each worker's link, in each direction; 0: loopback
    link_mbit: float = 0.0
    #: whether a run without such links is an error
    links_required: bool = False
    #: runs to make, in this order
    schemes: tuple[Scheme, ...] = (Scheme.FP32, Scheme.UNIFORM_THC, Scheme.THC)
    #: whether THC's final loss must be near the uncompressed one: after too few steps it says nothing
    judge_loss: bool = True
    validate_every: int = 25
    #: steps from one measurement of the average's error to the next; 0: none
    nmse_every: int = 10
    #: part of the nominal saving of bytes (32 / bits) that norms and padding may cost
    saving_tolerance: float = 0.05
    #: steps between broadcasts of rank 0's parameters (loss-tolerant mode; the paper does it every epoch)
    synchronize_every: int = 50
    #: seconds without any message from the workers after which the demo fails
    stall_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigurationError(f"--workers must be at least 1, not {self.workers}")
        require_packet_workers(self.workers)
        if self.steps < 1:
            raise ConfigurationError(f"--steps must be at least 1, not {self.steps}")
        if self.batch_size < 1:
            raise ConfigurationError(f"--batch-size must be at least 1, not {self.batch_size}")
        if not 1 <= self.servers <= MAX_SERVERS:
            raise ConfigurationError(f"--servers must be in 1 .. {MAX_SERVERS}, not {self.servers}")
        if self.link_mbit and not MIN_LINK_MBIT <= self.link_mbit <= MAX_LINK_MBIT:
            limits = f"0 (loopback) or in {MIN_LINK_MBIT} .. {MAX_LINK_MBIT}"
            raise ConfigurationError(f"--link-mbit must be {limits}, not {self.link_mbit:g}")
        if not 0 <= self.drop < 0.5:
            raise ConfigurationError(f"--drop is a probability below 0.5, not {self.drop}")
        for scheme in self.schemes:
            if scheme.through_aggregators:
                self.codes(scheme).resolve(self.workers)

    def codes(self, scheme: Scheme) -> ServerCodes:
        """Return the codes of THC or Uniform THC through aggregators that the options ask for."""
        return ServerCodes(
            bits=self.bits,
            granularity=(1 << self.bits) - 1 if scheme is Scheme.UNIFORM_THC else self.granularity,
            p="auto" if self.p is None else self.p,
            seed=self.seed,
            codes_per_packet=self.codes_per_packet,
        )


@dataclass(frozen=True)
class Progress:
    """One finished step, as rank 0 saw it."""

    scheme: Scheme
    #: 1 .. settings.steps
    step: int
    #: of rank 0's batch, nats per character
    training_loss: float
    #: of a part of the held-out text, set every settings.validate_every steps
    validation_loss: float | None


@dataclass(frozen=True)
class Failure:
    """Why a worker ended."""

    #: name of the worker's process
    worker: str
    message: str
    #: traceback
    details: str


@dataclass
class Traffic:
    """Bytes of one worker per step. payload: codes and norms, or aggregates; wire: with THC, UDP and IP headers, 0
    where packets were not counted.
    """

    payload_up: float
    payload_down: float
    wire_up: float
    wire_down: float


@dataclass
class RunResult:
    """One training run, as rank 0 measured it; lists have an entry per step."""

    scheme: Scheme
    coordinates: int
    #: mean over the workers
    training_loss: list[float] = field(default_factory=list)
    #: (step, loss on a part of the held-out text)
    validation_loss: list[tuple[int, float]] = field(default_factory=list)
    #: loss on all of the held-out text after the last step
    final_validation_loss: float = float("nan")
    traffic: Traffic = field(default_factory=lambda: Traffic(0, 0, 0, 0))
    encode_ms: list[float] = field(default_factory=list)
    communicate_ms: list[float] = field(default_factory=list)
    decode_ms: list[float] = field(default_factory=list)
    #: from gradient to average gradient, waiting for the slowest worker included
    average_ms: list[float] = field(default_factory=list)
    #: (step, normalised mean square error of the average gradient)
    nmse: list[tuple[int, float]] = field(default_factory=list)
    #: time of a step, without validation
    step_s: list[float] = field(default_factory=list)
    #: of all steps
    wall_s: float = 0.0
    #: bytes sent by a worker's host, mean over the hosts: counted on the links, or computed without links
    sent_bytes: float = 0.0
    #: every worker ended with the same parameters, bit for bit
    workers_agree: bool = False
    #: the lookup table's granularity and clamp, the codes per packet
    configuration: dict[str, float | int | str] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)


#: Mb/s of each worker's link in `thc demo`: an office's, or a share of a line between sites.
LINK_MBIT = 100.0
#: For `thc demo`: four runs took 2 min 46 s on two cores that other processes used, too.
DEFAULTS = DemoSettings(steps=160, layers=3, width=128, validate_every=10, nmse_every=0)

#: A switch in software takes milliseconds for 1024 coordinates of every worker. The neural network thus has 107,000
#: coordinates, unlike the 612,000 of `thc demo`, and trains for fewer steps.
SWITCH_DEFAULTS = DemoSettings(
    steps=60,
    batch_size=16,
    context=32,
    layers=2,
    width=64,
    learning_rate=6e-3,
    codes_per_packet=SWITCH_CODES_PER_PACKET,
    validate_every=10,
    # Packets are padded to 1024 codes and 256 norms, which shows where a partition is as small as here.
    saving_tolerance=0.1,
)


def ring_share(workers: int) -> float:
    """Return the part of a tensor's bytes that a rank sends in a ring all-reduce."""
    return 2 * (workers - 1) / workers
