"""Settings of codes that ranks decode, and their resolution for a number of ranks."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypedDict, Unpack

from pydantic import Field

from byteps_thc._base.environment import settings_of_variable
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.limits import MAX_RANKS, Bits
from byteps_thc._base.settings import Settings

#: Default bits of a code each way (evaluation/claims.md has the trainings that chose them).
DEFAULT_BITS: Bits = 4


class RankKeywords(TypedDict, total=False):
    """RankCodes as keyword arguments of front ends."""

    bits: Bits
    down_bits: Bits | None
    seed: int
    partition_bytes: int


class RankCodes(Settings):
    """Settings of codes that ranks decode, the same on all ranks. Raises ConfigurationError for invalid settings."""

    bits: Bits = DEFAULT_BITS
    """Bits of a code, 1 to 8."""
    down_bits: Bits | None = None
    """Bits of a code of an average, 1 to 8. None: the same as bits.
    With fsdp.compress: bits of a gathered parameter, None: 8."""
    seed: int = Field(default=0, ge=0, lt=1 << 64)
    """Seed of the rotation's signs and of the rounding."""
    # DDP's buckets of 25 MiB, or a little more, are three pieces, so that stages of one bucket overlap.
    partition_bytes: int = Field(default=9 << 20, ge=256, le=1 << 28, multiple_of=256)
    """Largest size of a piece in bytes of fp32 gradient, a multiple of 256."""
    _place: ClassVar[str] = "front ends of ranks, compress({}=...)"

    @classmethod
    def from_environment(cls, **settings: Unpack[RankKeywords]) -> Self:
        """Return the settings of $THC_CONFIG, overridden by `settings`.

        A warning names the overridden settings of the variable. Raises ConfigurationError for invalid settings,
        including overridden settings of the variable.
        """
        return settings_of_variable("CONFIG", cls, settings)

    def resolve(self, ranks: int, *, sharded: bool = False) -> "ResolvedRankCodes":
        """Return the settings of so many ranks. sharded: in a reduce-scatter.

        Raises ConfigurationError for more than MAX_RANKS ranks.
        """
        if not 1 <= ranks <= MAX_RANKS:
            raise ConfigurationError(f"ranks must be in 1 .. {MAX_RANKS}, not {ranks}")
        return ResolvedRankCodes(self, ranks, None if sharded else self.down_bits or self.bits)


@dataclass(frozen=True)
class ResolvedRankCodes:
    """RankCodes for a number of ranks.

    down_bits: None in a reduce-scatter, whose averages stay with their owners.
    """

    codes: RankCodes
    ranks: int
    down_bits: int | None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as plain values for a checkpoint."""
        return self.codes.model_dump() | {"down_bits": self.down_bits}

    @property
    def identity(self) -> tuple[object, ...]:
        """All values besides the gradients that change an average."""
        return (self.ranks, self.codes.bits, self.down_bits, self.codes.seed, self.codes.partition_bytes)
