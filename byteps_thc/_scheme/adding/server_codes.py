"""Settings of codes that servers add, checked when they are made, and their resolution for a number of workers."""

import zlib
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self, TypedDict, Unpack

from pydantic import Field, model_validator

from byteps_thc._base.environment import say_unused, settings_of_variable, variable_settings
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.limits import MAX_RANKS, Bits
from byteps_thc._base.settings import Settings, describe
from byteps_thc._base.wire.layout import (
    DEFAULT_ROTATION_BLOCK,
    MAX_CHUNKS,
    MAX_CODES_PER_PACKET,
    MAX_GRANULARITY,
    MAX_ROTATION_BLOCK,
    MIN_CODES_PER_PACKET,
    MIN_ROTATION_BLOCK,
    SWITCH_CODES_PER_PACKET,
)
from byteps_thc._scheme.adding.tables import LookupTable
from byteps_thc._scheme.adding.tables.lookup_table import PAPER_BITS, PAPER_GRANULARITY, PAPER_P
from byteps_thc._scheme.adding.tables.selection import best_table, expected_error
from byteps_thc._scheme.rounding import RoundingMode


class CodesBesideTable(TypedDict, total=False):
    """Settings of ServerCodes that paper() leaves open, as keyword arguments."""

    value_bits: Literal[8, 16, "auto"]
    rotation_block: int
    error_feedback: bool
    seed: int
    partition_bytes: int
    codes_per_packet: int | Literal["auto"]


class ServerCodes(Settings):
    """Settings of codes that servers or a switch add, the same on all workers.

    The default selects granularity, p and value bits for the number of workers. ServerCodes.paper() has the settings of
    the paper's evaluation, ServerCodes.uniform() is Uniform THC.

    Raises ConfigurationError for invalid settings.
    """

    bits: Bits = 4
    """Bits of a code, 1 to 8. A switch requires 4."""
    granularity: Annotated[int, Field(ge=1, le=MAX_GRANULARITY)] | Literal["auto"] = "auto"
    """Largest table value g. auto: the best for the number of workers.
    auto is at least 2^bits - 1, unless value_bits is too small for that and all workers."""
    p: Annotated[float, Field(gt=0, lt=1)] | Literal["auto"] = "auto"
    """Fraction of the coordinates that is clamped. auto: the best for the number of workers."""
    value_bits: Literal[8, 16, "auto"] = "auto"
    """Bits of a coordinate of a sum, 8 or 16. auto: 8 if the sums fit, else 16."""
    rotation_block: int = DEFAULT_ROTATION_BLOCK
    """Coordinates rotated together, a power of two from 64 to 2^20."""
    error_feedback: bool = False
    """Add the quantization loss to the next gradient of the same name.
    Costs a residual of 4 bytes per parameter, and doubles the error of a step. Without it, averages are divided
    by the share that clamping keeps."""
    seed: int = Field(default=0, ge=0, lt=1 << 64)
    """Seed of the rotation's signs and of the rounding."""
    rounding: RoundingMode = "stratified"
    """Random bits, "stratified" (shared and shifted) or "independent" (the paper's).
    With stratified rounding, errors of the workers cancel in part."""
    partition_bytes: int = Field(default=4 << 20, ge=256, le=1 << 30, multiple_of=256)
    """Largest size of a partition in bytes of fp32 gradient, a multiple of 256."""
    codes_per_packet: Literal["auto"] | Annotated[int, Field(ge=MIN_CODES_PER_PACKET, le=MAX_CODES_PER_PACKET)] = "auto"
    """Codes in a full packet, a multiple of 64. auto: as many as the MTU allows.
    A switch supports 1024, and auto uses at most the number of the workers that joined before. Set a number if
    workers have different MTUs. Averages do not depend on it."""
    _place: ClassVar[str] = (
        "NetworkConfig and Compression.thc, codes=ServerCodes({}=...); of FSDP2's functions, compress_replicas() alone "
        "takes a NetworkConfig"
    )

    @classmethod
    def paper(cls, **settings: Unpack[CodesBesideTable]) -> Self:
        """Return the settings of the paper's evaluation (section 8): b = 4, g = 30, p = 1/32, independent rounding.

        settings: further settings; error_feedback is True by default.
        """
        settings.setdefault("error_feedback", True)
        return cls(bits=PAPER_BITS, granularity=PAPER_GRANULARITY, p=PAPER_P, rounding="independent", **settings)

    @classmethod
    def uniform(
        cls,
        bits: Bits = 4,
        *,
        p: float | Literal["auto"] = "auto",
        rounding: RoundingMode = "stratified",
        **settings: Unpack[CodesBesideTable],
    ) -> Self:
        """Return Uniform THC (section 4): the identity table, g = 2^bits - 1.

        bits: bits of a code, 1 to 8, default 4.
        p: fraction of the coordinates that is clamped, default "auto".
        rounding: "stratified" (default) or "independent".
        settings: further settings of ServerCodes.
        """
        codes = cls(bits=bits, p=p, rounding=rounding, **settings)
        return codes.model_copy(update={"granularity": (1 << codes.bits) - 1})

    @classmethod
    def from_environment(cls) -> Self:
        """Return the settings of $THC_CONFIG; ConfigurationError if they are invalid."""
        return settings_of_variable("CONFIG", cls, {})

    def check_environment(self) -> None:
        """Warn of the settings of $THC_CONFIG that these override; ConfigurationError for unknown settings."""
        found = variable_settings("CONFIG", type(self).model_fields, others=True)
        say_unused("CONFIG", found, self.model_dump(), "a ServerCodes")

    @model_validator(mode="after")
    def _check(self) -> "ServerCodes":
        block = self.rotation_block
        if not MIN_ROTATION_BLOCK <= block <= MAX_ROTATION_BLOCK or block & (block - 1):
            limits = f"{MIN_ROTATION_BLOCK} .. {MAX_ROTATION_BLOCK}"
            raise ValueError(f"rotation_block must be a power of two in {limits}, not {block}")
        codes_per_packet = SWITCH_CODES_PER_PACKET if self.codes_per_packet == "auto" else self.codes_per_packet
        if codes_per_packet % MIN_CODES_PER_PACKET:
            raise ValueError(f"codes_per_packet must be a multiple of {MIN_CODES_PER_PACKET}, not {codes_per_packet}")
        if self.partition_coordinates > codes_per_packet * MAX_CHUNKS:
            raise ValueError(f"a partition takes more than {MAX_CHUNKS} packets: raise codes_per_packet")
        return self

    @property
    def partition_coordinates(self) -> int:
        """Coordinates of a full partition."""
        return self.partition_bytes // 4

    def resolve(self, workers: int) -> "ResolvedCodes":
        """Return the table and value bits for servers and switches with `workers` workers.

        Raises ConfigurationError if granularity * workers does not fit the aggregate, or for more than 1024 workers.
        Servers and switches support fewer workers.
        """
        if not 1 <= workers <= MAX_RANKS:
            raise ConfigurationError(f"workers must be in 1 .. {MAX_RANKS}, not {workers}")
        bits = self.bits
        granularity = None if self.granularity == "auto" else self.granularity
        value_bits = self.value_bits
        if value_bits == "auto":
            value_bits = 8 if (granularity or (1 << bits) - 1) * workers < 1 << 8 else 16
        p = None if self.p == "auto" else self.p
        table = best_table(
            bits, workers, value_bits, self.error_feedback, granularity=granularity, p=p, rounding=self.rounding
        )
        return ResolvedCodes(self, workers, table, value_bits)


def require_codes(codes: object, user: str) -> None:
    """Raise ConfigurationError, naming `user`, unless `codes` are a ServerCodes."""
    if not isinstance(codes, ServerCodes):
        raise ConfigurationError(f"codes is {describe(codes)}, and {user} takes a ServerCodes: use ServerCodes(...)")


@dataclass(frozen=True)
class ResolvedCodes:
    """A ServerCodes for a number of workers, without "auto", whose sums fit."""

    codes: ServerCodes
    """The settings."""
    workers: int
    """Number of workers."""
    table: LookupTable
    """The lookup table of codes."""
    value_bits: int
    """Bits of a coordinate of a sum, 8 or 16."""

    @property
    def error_feedback(self) -> bool:
        """Whether the quantization loss is added to the next gradient."""
        return self.codes.error_feedback

    def expected_error(self) -> float:
        """Return the NMSE of an average of independent gradients, by which "auto" chooses tables.

        With error feedback the limit of many steps.
        """
        return expected_error(self.table, self.workers, self.error_feedback, self.codes.rounding)

    @property
    def decode_threshold(self) -> float:
        """The clamp, in norms, for decoding an average.

        Clamping shrinks the average: E[z clamp(z)] = 1 - p for a standard normal z (Stein). Error feedback returns the
        missing part. Without it, averages are divided by 1 - p, which makes them unbiased if the workers' norms are
        equal. A worker with a smaller norm than the largest is clamped less, and weighs up to 1 / (1 - p) too much.
        """
        threshold = self.table.threshold
        return threshold if self.error_feedback else threshold / (1 - self.table.p)

    @property
    def identity(self) -> tuple[object, ...]:
        """All values besides the gradients that change an average; the same on all workers."""
        return (self.shared_hash, self.table.bits, [*self.table.values], self.workers)

    @property
    def shared_hash(self) -> int:
        """32-bit hash of the settings that servers ignore and all workers must share.

        Different signs, clamps or blocks would make wrong averages without an error. Different rounding would increase
        their error.
        """
        codes = self.codes
        sizes = (codes.rotation_block, codes.partition_bytes)
        shared: tuple[object, ...] = (codes.seed, self.decode_threshold.hex(), *sizes, codes.rounding)
        return zlib.crc32(repr(shared).encode())


def resolved_for(codes: ServerCodes | ResolvedCodes, workers: int, worker: int, user: str) -> ResolvedCodes:
    """Return the settings of a worker's compressor, named `user`; ConfigurationError unless they fit."""
    if not isinstance(codes, ResolvedCodes):
        require_codes(codes, user)
        codes = codes.resolve(workers)
    if not 0 <= worker < workers:
        raise ConfigurationError(f"worker must be in 0 .. {workers - 1}, not {worker}")
    if codes.workers != workers:
        raise ConfigurationError(
            f"codes were resolved for {codes.workers} workers, not {workers}: resolve them for {workers}"
        )
    return codes
