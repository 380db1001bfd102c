"""Settings of THC, checked when they are made, and their resolution for a number of workers."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypedDict, Unpack

from pydantic import Field, model_validator

from byteps_thc._scheme.environment import say_unused, variable_settings
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc._scheme.limits import MAX_RANKS
from byteps_thc._scheme.rounding import RoundingMode
from byteps_thc._scheme.settings import Settings, describe, warn_once
from byteps_thc._scheme.tables import LookupTable
from byteps_thc._scheme.tables.lookup_table import PAPER_BITS, PAPER_GRANULARITY, PAPER_P
from byteps_thc._scheme.tables.selection import best_table, expected_error
from byteps_thc._scheme.wire.layout import (
    DEFAULT_ROTATION_BLOCK,
    MAX_CHUNKS,
    MAX_CODES_PER_PACKET,
    MAX_GRANULARITY,
    MAX_ROTATION_BLOCK,
    MIN_CODES_PER_PACKET,
    MIN_ROTATION_BLOCK,
    SWITCH_CODES_PER_PACKET,
)

Bits = Literal[1, 2, 3, 4, 5, 6, 7, 8]
#: Unless bits are given.
_DEFAULT_BITS: Bits = 4


class SettingsBesideTable(TypedDict, total=False):
    """Settings of ThcConfig that paper() leaves open, as keyword arguments."""

    value_bits: Literal[8, 16, "auto"]
    down_bits: Bits | None
    rotation_block: int
    error_feedback: bool | Literal["auto"]
    seed: int
    partition_bytes: int
    codes_per_packet: int | Literal["auto"]


class ThcSettings(SettingsBesideTable, total=False):
    """Settings of ThcConfig as keyword arguments of front ends."""

    bits: Bits | Literal["auto"]
    granularity: int | Literal["auto"]
    p: float | Literal["auto"]
    rounding: RoundingMode


class ThcConfig(Settings):
    """Settings of compression, the same on all workers.

    The default selects granularity, p and value bits for the number of workers. ThcConfig.paper() has the settings of
    the paper's evaluation, ThcConfig.uniform() is Uniform THC.

    Raises ConfigurationError for invalid settings.
    """

    bits: Bits | Literal["auto"] = "auto"
    """Bits of a code, 1 to 8. auto: 4. A switch requires 4."""
    down_bits: Bits | None = None
    """Among ranks: bits of a code of an average, 1 to 8. None: the same as bits. Ignored with servers."""
    granularity: Annotated[int, Field(ge=1, le=MAX_GRANULARITY)] | Literal["auto"] = "auto"
    """With servers: the largest table value g. auto: the best for the number of workers.
    auto is at least 2^bits - 1, unless value_bits is too small for that and all workers."""
    p: Annotated[float, Field(gt=0, lt=1)] | Literal["auto"] = "auto"
    """With servers: fraction of the coordinates that is clamped. auto: the best for the number of workers."""
    value_bits: Literal[8, 16, "auto"] = "auto"
    """With servers: bits of a coordinate of a sum, 8 or 16. auto: 8 if the sums fit, else 16."""
    rotation_block: int = DEFAULT_ROTATION_BLOCK
    """With servers: coordinates rotated together, a power of two from 64 to 2^20. Ranks without servers rotate 64."""
    error_feedback: bool | Literal["auto"] = "auto"
    """With servers: add the quantization loss to the next gradient of the same name. auto: off.
    Costs a residual of 4 bytes per parameter, and doubles the error of a step. Without it, averages are divided
    by the share that clamping keeps."""
    seed: int = Field(default=0, ge=0, lt=1 << 64)
    """Seed of the rotation's signs and of the rounding."""
    rounding: RoundingMode = "stratified"
    """With servers: random bits, "stratified" (shared and shifted) or "independent" (the paper's).
    With stratified rounding, errors of the workers cancel in part."""
    partition_bytes: int = Field(default=4 << 20, ge=256, le=1 << 30)
    """Largest size of a partition in bytes of fp32 gradient, a multiple of 256."""
    codes_per_packet: Literal["auto"] | Annotated[int, Field(ge=MIN_CODES_PER_PACKET, le=MAX_CODES_PER_PACKET)] = "auto"
    """With servers: codes in a full packet, a multiple of 64. auto: as many as the MTU allows.
    A switch supports 1024, and auto uses at most the number of the workers that joined before. Set a number if
    workers have different MTUs. Averages do not depend on it."""

    @classmethod
    def paper(cls, **settings: Unpack[SettingsBesideTable]) -> Self:
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
        **settings: Unpack[SettingsBesideTable],
    ) -> Self:
        """Return Uniform THC (section 4): the identity table, g = 2^bits - 1.

        bits: bits of a code, 1 to 8, default 4.
        p: fraction of the coordinates that is clamped, default "auto".
        rounding: "stratified" (default) or "independent".
        settings: further settings of ThcConfig.
        """
        config = cls(bits=bits, p=p, rounding=rounding, **settings)
        return config.model_copy(update={"granularity": (1 << config.code_bits) - 1})

    @classmethod
    def from_environment(cls, **settings: Unpack[ThcSettings]) -> Self:
        """Return the settings of $THC_CONFIG, overridden by `settings`.

        Front ends use it without a ThcConfig. A warning names the overridden settings of the variable.

        Raises ConfigurationError for invalid settings, including overridden settings of the variable.
        """
        environment = variable_settings("CONFIG", cls.model_fields)
        cls(**settings)  # reports its own mistakes first, not as the variable's
        beside: dict[str, Any] = {name: value for name, value in environment.items() if name not in settings}
        try:
            cls(**environment)
            config = cls(**beside, **settings)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error} (from THC_CONFIG)") from None
        given: dict[str, Any] = {**settings}
        say_unused("CONFIG", environment, beside | given, ", ".join(f"{name}={value}" for name, value in given.items()))
        return config

    @classmethod
    def check_environment(cls, config: ThcConfig) -> None:
        """Warn of the settings of $THC_CONFIG that `config` overrides.

        Raises ConfigurationError for unknown settings.
        """
        say_unused("CONFIG", variable_settings("CONFIG", cls.model_fields), config.model_dump(), "a ThcConfig")

    @model_validator(mode="after")
    def _check(self) -> ThcConfig:
        block = self.rotation_block
        if not MIN_ROTATION_BLOCK <= block <= MAX_ROTATION_BLOCK or block & (block - 1):
            limits = f"{MIN_ROTATION_BLOCK} .. {MAX_ROTATION_BLOCK}"
            raise ValueError(f"rotation_block must be a power of two in {limits}, not {block}")
        codes_per_packet = SWITCH_CODES_PER_PACKET if self.codes_per_packet == "auto" else self.codes_per_packet
        if self.partition_bytes % 256:
            raise ValueError(f"partition_bytes must be a multiple of 256, not {self.partition_bytes}")
        if codes_per_packet % MIN_CODES_PER_PACKET:
            raise ValueError(f"codes_per_packet must be a multiple of {MIN_CODES_PER_PACKET}, not {codes_per_packet}")
        if self.partition_coordinates > codes_per_packet * MAX_CHUNKS:
            raise ValueError(f"a partition takes more than {MAX_CHUNKS} packets: raise codes_per_packet")
        return self

    @property
    def partition_coordinates(self) -> int:
        """Coordinates of a full partition."""
        return self.partition_bytes // 4

    @property
    def code_bits(self) -> Bits:
        """Bits of a code to servers and switches."""
        return _DEFAULT_BITS if self.bits == "auto" else self.bits

    @property
    def keeps_residuals(self) -> bool:
        """Whether error feedback is on; "auto" is off."""
        return self.error_feedback is True

    def warn_of_ignored_bits(self, user: str, worker: int) -> None:
        """Warn once, on worker 0, if down_bits have no effect.

        user: name of the front end in the warning.
        worker: number of this worker.
        """
        if self.down_bits is not None and worker == 0:
            warn_once(f"down_bits={self.down_bits} has no effect on {user}: omit it")

    def resolve(self, workers: int) -> ResolvedConfig:
        """Return the table and value bits for servers and switches with `workers` workers.

        Raises ConfigurationError if granularity * workers does not fit the aggregate, or for more than 1024 workers.
        Servers and switches support fewer workers.
        """
        if not 1 <= workers <= MAX_RANKS:
            raise ConfigurationError(f"workers must be in 1 .. {MAX_RANKS}, not {workers}")
        smallest = (1 << self.code_bits) - 1
        granularity = None if self.granularity == "auto" else self.granularity
        value_bits = self.value_bits
        if value_bits == "auto":
            value_bits = 8 if (granularity or smallest) * workers < 1 << 8 else 16
        p = None if self.p == "auto" else self.p
        table = best_table(
            self.code_bits,
            workers,
            value_bits,
            self.keeps_residuals,
            granularity=granularity,
            p=p,
            rounding=self.rounding,
        )
        return ResolvedConfig(self, workers, table, value_bits)


def require_thc(config: object, user: str) -> None:
    """Raise ConfigurationError, naming `user`, unless `config` is a ThcConfig."""
    if not isinstance(config, ThcConfig):
        raise ConfigurationError(f"config is {describe(config)}, and {user} takes a ThcConfig: use ThcConfig(...)")


@dataclass(frozen=True)
class ResolvedConfig:
    """A ThcConfig for servers and a number of workers, without "auto", whose sums fit."""

    config: ThcConfig
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
        return self.config.keeps_residuals

    @property
    def settings(self) -> dict[str, Any]:
        """The config as plain values for a checkpoint, with the chosen bits."""
        chosen = {"bits": self.table.bits, "error_feedback": self.error_feedback}
        return self.config.model_dump(exclude={"down_bits"}) | chosen

    def expected_error(self) -> float:
        """Return the NMSE of an average of independent gradients, by which "auto" chooses tables.

        With error feedback the limit of many steps.
        """
        return expected_error(self.table, self.workers, self.error_feedback, self.config.rounding)

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
        config = self.config
        sizes = (config.rotation_block, config.partition_bytes)
        shared: tuple[object, ...] = (config.seed, self.decode_threshold.hex(), *sizes, config.rounding)
        return zlib.crc32(repr(shared).encode())
