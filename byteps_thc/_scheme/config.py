"""Settings of THC, checked when they are made, and what they come to for a number of workers."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypedDict, Unpack

from pydantic import Field, model_validator

from byteps_thc._scheme.arrays import ResidualDtype
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

#: of a code
Bits = Literal[1, 2, 3, 4, 5, 6, 7, 8]
#: Of a code, unless bits are given.
_DEFAULT_BITS: Bits = 4
#: Settings that are each worker's own affair: others may have other ones, and so may whoever loads a checkpoint.
LOCAL_SETTINGS = frozenset({"residual_dtype"})


class SettingsBesideTable(TypedDict, total=False):
    """Settings of ThcConfig that paper() leaves open, as keyword arguments."""

    value_bits: Literal[8, 16, "auto"]
    down_bits: Bits | None
    rotation_block: int
    error_feedback: bool | Literal["auto"]
    residual_dtype: ResidualDtype
    seed: int
    partition_bytes: int
    codes_per_packet: int | Literal["auto"]


class ThcSettings(SettingsBesideTable, total=False):
    """All settings of ThcConfig, as keyword arguments of front ends; ThcConfig describes them."""

    bits: Bits | Literal["auto"]
    granularity: int | Literal["auto"]
    p: float | Literal["auto"]
    rounding: RoundingMode


class ThcConfig(Settings):
    """Settings of one training job, the same on all workers. Raises ConfigurationError when they are not valid.

    The default chooses granularity, p and value bits for the number of workers (_scheme/tables/selection.py says how).
    ThcConfig.paper() is the setting of the paper's evaluation, ThcConfig.uniform() is Uniform THC.
    """

    bits: Bits | Literal["auto"] = "auto"
    """b, bits of a code; auto: 4 to servers and switches, 5 among ranks (rank_settings.py)"""
    down_bits: Bits | None = None
    """among ranks: bits of a code of an average, on its way from the rank that has made it; None: as `bits`. Servers
    and switches send sums, and do not look at it"""
    granularity: Annotated[int, Field(ge=1, le=MAX_GRANULARITY)] | Literal["auto"] = "auto"
    """g, the largest table value; auto: at least 2^bits - 1, unless value_bits is too few for that and all workers"""
    p: Annotated[float, Field(gt=0, lt=1)] | Literal["auto"] = "auto"
    """fraction of the coordinates that is clamped"""
    value_bits: Literal[8, 16, "auto"] = "auto"
    """bits of a coordinate of the aggregate; auto: 8 when the sums fit, else 16"""
    rotation_block: int = DEFAULT_ROTATION_BLOCK
    """coordinates rotated together, a power of two in 64 .. 2^20"""
    error_feedback: bool | Literal["auto"] = "auto"
    """add what was lost by quantization to the next gradient of the same name; without it, averages are divided by what
    clamping leaves of them, so that none is lost (ResolvedConfig.decode_threshold); auto: as trainings say
    (evaluation/benchmarks.md), which is off, with all bits and on all routes"""
    residual_dtype: ResidualDtype = "float32"
    """what was lost is kept in, where there is error feedback: 4 bytes a parameter, or 2, rounded to nearest even.
    One of LOCAL_SETTINGS: checkpoints with residuals of either type are loaded"""
    seed: int = Field(default=0, ge=0, lt=1 << 64)
    """selects the signs of the rotation and the rounding"""
    rounding: RoundingMode = "stratified"
    """which random bits the workers round with: stratified, the same ones shifted against each other, so that their
    errors cancel in part; or independent, each worker its own, as in the paper"""
    partition_bytes: int = Field(default=4 << 20, ge=256, le=1 << 30)
    """bytes of fp32 gradient that are pushed as one partition, at most; a multiple of 256"""
    codes_per_packet: Literal["auto"] | Annotated[int, Field(ge=MIN_CODES_PER_PACKET, le=MAX_CODES_PER_PACKET)] = "auto"
    """codes in a full packet, a multiple of 64; auto: as many as the paths to the servers take, or where those say so
    fewer: a switch's 1024, or those of workers that came before. Where MTUs differ give all workers a number. No
    average depends on it"""

    @classmethod
    def paper(cls, **settings: Unpack[SettingsBesideTable]) -> Self:
        """Return the setting of the paper's evaluation (section 8): b = 4, g = 30, p = 1/32, independent rounding.

        With error feedback, unless it is given otherwise.
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
        """Return Uniform THC with codes of `bits` bits (section 4): the identity table, g = 2^bits - 1."""
        config = cls(bits=bits, p=p, rounding=rounding, **settings)
        return config.model_copy(update={"granularity": (1 << config.code_bits) - 1})

    @classmethod
    def from_environment(cls, **settings: Unpack[ThcSettings]) -> Self:
        """Return the settings of $THC_CONFIG (environment.py) with those given here, which go first.

        Front ends use it if they are given no ThcConfig. A warning names the settings of the variable that are given
        here, too, and not used. ConfigurationError for settings that are not valid, in the variable also where they are
        not used.
        """
        environment = variable_settings("CONFIG", cls.model_fields)
        cls(**settings)  # whose mistakes are not the variable's
        beside: dict[str, Any] = {name: value for name, value in environment.items() if name not in settings}
        try:
            cls(**environment)
            config = cls(**beside, **settings)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error} (THC_CONFIG says {', '.join(environment)})") from None
        given: dict[str, Any] = {**settings}
        say_unused("CONFIG", environment, beside | given, ", ".join(f"{name}={value}" for name, value in given.items()))
        return config

    @classmethod
    def check_environment(cls, config: ThcConfig) -> None:
        """Warn of all of $THC_CONFIG that is not used because a program gives `config`.

        Raises ConfigurationError for settings that no ThcConfig has.
        """
        say_unused("CONFIG", variable_settings("CONFIG", cls.model_fields), config.model_dump(), "a ThcConfig")

    @model_validator(mode="after")
    def _check(self) -> ThcConfig:
        block = self.rotation_block
        if not MIN_ROTATION_BLOCK <= block <= MAX_ROTATION_BLOCK or block & (block - 1):
            limits = f"{MIN_ROTATION_BLOCK} .. {MAX_ROTATION_BLOCK}"
            raise ValueError(f"rotation_block must be a power of two in {limits}, not {block}")
        codes_per_packet = SWITCH_CODES_PER_PACKET if self.codes_per_packet == "auto" else self.codes_per_packet
        if self.partition_bytes % 256 or codes_per_packet % MIN_CODES_PER_PACKET:
            raise ValueError(
                f"partition_bytes must be a multiple of 256 and codes_per_packet of {MIN_CODES_PER_PACKET}"
            )
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
        """error_feedback, with "auto" decided."""
        return self.error_feedback is True

    def warn_of_ignored_bits(self, user: str, worker: int) -> None:
        """Warn once, on worker 0, of down_bits that have no effect on `user`."""
        if self.down_bits is not None and worker == 0:
            warn_once(f"down_bits={self.down_bits} has no effect on {user}: omit it")

    def resolve(self, workers: int) -> ResolvedConfig:
        """Return the table and value bits for servers and switches with that many workers.

        ConfigurationError when granularity * workers does not fit the aggregate, naming what would, and for more than
        MAX_RANKS workers; servers and switches take fewer (limits.py).
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
    """ConfigurationError unless `config` is a ThcConfig; user: what takes nothing else."""
    if not isinstance(config, ThcConfig):
        raise ConfigurationError(f"config is {describe(config)}, and {user} takes a ThcConfig: use ThcConfig(...)")


@dataclass(frozen=True)
class ResolvedConfig:
    """ThcConfig for servers and a number of workers: nothing "auto" is left, and sums are known to fit."""

    config: ThcConfig
    workers: int
    table: LookupTable
    value_bits: int

    @property
    def error_feedback(self) -> bool:
        """Whether what quantization loses is kept, and added to the next gradient."""
        return self.config.keeps_residuals

    @property
    def settings(self) -> dict[str, Any]:
        """The config as plain values, with the bits that were chosen: what a checkpoint has of it."""
        chosen = {"bits": self.table.bits, "error_feedback": self.error_feedback}
        return self.config.model_dump(exclude={"down_bits", *LOCAL_SETTINGS}) | chosen

    def expected_error(self) -> float:
        """Return the criterion of _scheme/tables/selection.py."""
        return expected_error(self.table, self.workers, self.error_feedback, self.config.rounding)

    @property
    def decode_threshold(self) -> float:
        """The clamp in norms that an average is decoded with.

        Clamping shrinks the average: E[z clamp(z)] = 1 - p for a standard normal z (Stein). Error feedback returns what
        is missing; without it, averages are divided by 1 - p, which makes them unbiased where the workers' norms are
        equal. A worker with a smaller norm than the largest is clamped less, and weighs up to 1 / (1 - p) too much.
        """
        threshold = self.table.threshold
        return threshold if self.error_feedback else threshold / (1 - self.table.p)

    @property
    def identity(self) -> tuple[object, ...]:
        """What an average depends on besides the gradients: the same on all workers."""
        return (self.shared_hash, self.table.bits, [*self.table.values], self.workers)

    @property
    def shared_hash(self) -> int:
        """32-bit hash of the settings that servers do not look at, but that must be the same on all workers.

        Other signs, clamps (of an average, too) or blocks than the other workers' would give wrong averages without any
        error; with other rounding, averages would err more than they should.
        """
        config = self.config
        sizes = (config.rotation_block, config.partition_bytes)
        shared: tuple[object, ...] = (config.seed, self.decode_threshold.hex(), *sizes, config.rounding)
        return zlib.crc32(repr(shared).encode())
