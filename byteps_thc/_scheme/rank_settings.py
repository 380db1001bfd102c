"""Resolves settings among ranks, which decode each other's codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from byteps_thc._scheme.config import ThcConfig
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc._scheme.limits import MAX_RANKS

#: Default bits of a code each way (evaluation/claims.md has the trainings that chose them).
DEFAULT_BITS = 4
#: Settings of tables and of servers, without meaning among ranks that decode.
_OF_SERVERS = ("granularity", "p", "value_bits", "rotation_block", "error_feedback", "rounding", "codes_per_packet")


@dataclass(frozen=True)
class RankSettings:
    """ThcConfig for a number of ranks. bits: of a code to the owner of a shard. down_bits: of a code of its average;
    None in a reduce-scatter, whose averages stay with their owners.
    """

    config: ThcConfig
    ranks: int
    bits: int
    down_bits: int | None

    @classmethod
    def of(cls, config: ThcConfig, ranks: int, *, sharded: bool = False) -> RankSettings:
        """Return the resolved settings. sharded: for a reduce-scatter.

        Raises ConfigurationError for more than MAX_RANKS ranks, and for settings that only servers have.
        """
        if not 1 <= ranks <= MAX_RANKS:
            raise ConfigurationError(f"ranks must be in 1 .. {MAX_RANKS}, not {ranks}")
        given = [name for name in _OF_SERVERS if name in config.model_fields_set]
        if given:
            raise ConfigurationError(
                f"{', '.join(given)}: only for servers and switches: omit, or pass network=NetworkConfig(...). Ranks "
                "without servers have bits and down_bits"
            )
        bits = DEFAULT_BITS if config.bits == "auto" else config.bits
        down_bits = bits if config.down_bits is None else config.down_bits
        return cls(config, ranks, bits, None if sharded else down_bits)

    @property
    def chosen(self) -> dict[str, Any]:
        """Results of the settings, which other versions may choose otherwise."""
        return {"bits": self.bits, "down_bits": self.down_bits}

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as plain values for a checkpoint, with the chosen bits."""
        return self.config.model_dump(exclude={*_OF_SERVERS}) | self.chosen

    @property
    def identity(self) -> tuple[object, ...]:
        """All values besides the gradients that change an average."""
        return (self.ranks, *self.chosen.values(), self.config.seed, self.config.partition_bytes)
