"""The lookup table T: codes to table values."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.wire.fnv1a import fnv1a_64
from byteps_thc._base.wire.layout import CODE_BITS, MAX_GRANULARITY
from byteps_thc._scheme.adding.tables import solver
from byteps_thc._scheme.rounding import RoundingMode

#: The solver takes granularity^2 doubles; beyond this a finer grid changes the cost in the sixth digit only.
MAX_SOLVED_GRANULARITY = 2047
#: The paper's setting (section 8): g = 30 and p = 1/32 for 4-bit codes; its sums fit 8 bits for up to 8 workers.
PAPER_BITS: Final = 4
PAPER_GRANULARITY, PAPER_P = 30, 1 / 32


@dataclass(frozen=True)
class LookupTable:
    """An increasing table 0 = T[0] < ... < T[2^bits - 1] = granularity, and its clamp.

    If the granularity is below 2^bits - 1, which serves more workers, T[z] = min(z, granularity), and workers send
    codes up to granularity only. docs/contributors/protocol.md, "Arithmetic", has the rounding to values.

    bits: b, bits of a code, 1 to 8.
    granularity: g, the largest value.
    p: fraction of the coordinates that is clamped.
    values: T, 2^bits integers.
    cost: expected squared quantization error of a coordinate, in units of its variance, without clamping (section 5.2).

    Raises ConfigurationError if the values make no such table.
    """

    bits: int
    granularity: int
    p: float
    values: tuple[int, ...]
    cost: float

    def __post_init__(self) -> None:
        check_parameters(self.bits, self.granularity, self.p)
        if len(self.values) != 1 << self.bits:
            raise ConfigurationError(f"a table of {self.bits} bits has {1 << self.bits} values, not {len(self.values)}")
        if self.values[0] != 0 or self.values[-1] != self.granularity:
            raise ConfigurationError(
                f"a table runs from 0 to granularity {self.granularity}, not {self.values[0]} to {self.values[-1]}"
            )
        used = self.values[: self.levels]
        if any(low >= high for low, high in pairwise(used)):
            raise ConfigurationError(f"table values must increase strictly: {list(self.values)}")
        if set(self.values[self.levels - 1 :]) != {self.granularity}:
            raise ConfigurationError(
                f"a table that ends with {self.granularity} has that value from code {self.levels - 1} on: "
                f"{list(self.values)}"
            )
        if not (math.isfinite(self.cost) and self.cost >= 0):
            raise ConfigurationError(f"the cost of a table is finite and not negative, not {self.cost}")

    @classmethod
    def solve(cls, bits: int, granularity: int, p: float) -> "LookupTable":
        """Return the table of least cost, found exactly by dynamic programming in about a millisecond.

        bits: bits of a code, 1 to 8.
        granularity: largest value.
        p: fraction of the coordinates that is clamped.
        """
        check_parameters(bits, granularity, p)
        unused = (1 << bits) - 1 - granularity
        if unused <= 0:
            return solve_grid([bits], [granularity], [p])[0]
        values, costs = solver.optimal_values(solver.interval_costs(granularity, [p]), [granularity])[granularity]
        return cls(bits, granularity, p, (*values[0].tolist(), *[granularity] * unused), float(costs[0]))

    @classmethod
    def paper(cls) -> "LookupTable":
        """Return the table of the paper's evaluation: b = 4, g = 30, p = 1/32."""
        return cls.solve(PAPER_BITS, PAPER_GRANULARITY, PAPER_P)

    @classmethod
    def uniform(cls, bits: int, p: float = PAPER_P) -> "LookupTable":
        """Return the identity table, g = 2^bits - 1, of Uniform THC (section 4), whose codes can be added directly.

        bits: bits of a code, 1 to 8.
        p: fraction of the coordinates that is clamped, default 1/32.
        """
        return cls.solve(bits, (1 << bits) - 1, p)

    @property
    def levels(self) -> int:
        """Number of different values, of codes 0 .. levels - 1: 2^bits, or granularity + 1 if smaller."""
        return min(len(self.values), self.granularity + 1)

    @property
    def threshold(self) -> float:
        """t_p = Phi^-1(1 - p/2), the clamp in units of the norm."""
        return solver.threshold(self.p)

    @property
    def clamp_cost(self) -> float:
        """Expected squared error of clamping a coordinate, in units of its variance."""
        return solver.clamp_cost(self.p)

    @cached_property
    def shared_variance(self) -> float:
        """Part of `cost` that depends on the rounding bits alone (solver.shared_variance); 10 digits, as of cost."""
        step = 2 * self.threshold / self.granularity
        return float(f"{solver.shared_variance([value * step - self.threshold for value in self.values]):.9e}")

    def average_cost(self, workers: int, rounding: RoundingMode = "stratified") -> float:
        """Return the expected squared quantization error of the average of independent gradients, times workers.

        workers: number of workers; 1 gives the cost.
        rounding: "stratified" (default) or "independent".

        An error has a part h(v) of the rounding number v, with variance V = shared_variance, and an independent part.
        Stratified numbers v + i / n spread over h, which is about a line: the sum over n workers is again a line of
        variance V, and the result is cost - (1 - 1/n) V, about (n + 1) / (2 n) of the cost. Equal coordinates have
        cost / n.
        """
        return self.cost if rounding == "independent" else self.cost - (1 - 1 / workers) * self.shared_variance

    @cached_property
    def array(self) -> npt.NDArray[np.uint16]:
        """The values for kernels: uint16[2^bits], read-only."""
        array = np.array(self.values, dtype=np.uint16)
        array.flags.writeable = False
        return array

    @cached_property
    def hash(self) -> int:
        """FNV-1a 64 of (bits u8, granularity u16 be, values u16 be each), a field of HELLO (wire.toml)."""
        words = b"".join(value.to_bytes(2, "big") for value in (self.granularity, *self.values))
        return fnv1a_64(bytes([self.bits]) + words)


def check_parameters(bits: int, granularity: int, p: float) -> None:
    """Raise ConfigurationError unless a table with these parameters exists."""
    if bits not in CODE_BITS:
        raise ConfigurationError(f"bits must be one of {', '.join(map(str, CODE_BITS))}, not {bits}")
    if not 1 <= granularity <= MAX_GRANULARITY:
        raise ConfigurationError(f"granularity must be in 1..{MAX_GRANULARITY}, not {granularity}")
    if not 0 < p < 1:
        raise ConfigurationError(f"p, the fraction of clamped coordinates, must be between 0 and 1, not {p}")


def solve_grid(bits: Iterable[int], granularities: Iterable[int], p: Sequence[float]) -> list[LookupTable]:
    """Return the optimal table for every combination with granularity >= 2^bits - 1, p varying fastest.

    All tables of one granularity share a pass of the dynamic program. Memory: len(p) * granularity^2 doubles.
    """
    code_bits, tables = sorted(set(bits)), []
    for g in sorted(set(granularities)):
        fitting = [b for b in code_bits if g >= (1 << b) - 1]
        for b in fitting:
            for fraction in p:
                check_parameters(b, g, fraction)
        if g > MAX_SOLVED_GRANULARITY:
            raise ConfigurationError(f"granularity {g} is too fine to solve for: use at most {MAX_SOLVED_GRANULARITY}")
        if not fitting or not p:
            continue
        found = solver.optimal_values(solver.interval_costs(g, p), [(1 << b) - 1 for b in fitting])
        for b in fitting:
            values, costs = found[(1 << b) - 1]
            rows = zip(p, values.tolist(), costs.tolist(), strict=True)
            tables += [LookupTable(b, g, fraction, tuple(row), cost) for fraction, row, cost in rows]
    return tables
