"""Error of weights that FSDP2 gathers: bf16, ZeRO++'s int8 and THC, of normal weights and beside outliers."""

import math
import statistics
from collections.abc import Callable

import numpy as np
import torch
from averages.quantizers import F64, Integers
from averages.schemes import nmse
from pages.claim import Check, Claim, Result, Table
from trainings.train import mean_and_spread

from byteps_thc._base.arrays import F32
from byteps_thc._engine.decoding.gather_codes import HostCodes, gather_plan
from byteps_thc._engine.engine import ParameterSlice, ShardMatrix
from byteps_thc._scheme.decoding.codec import RankCodec
from byteps_thc._scheme.decoding.settings import RankCodes

COORDINATES, SEEDS = 1 << 20, 5
INT8 = Integers(8, 2048, scale=np.float32, nearest=True)
INT8_NAME = "int8, blocks of 2048 (ZeRO++)"
THC_BITS = (8, 7, 6, 5)
#: Share of weights that are multiplied, and the factor.
OUTLIERS = {"normal": (0.0, 1.0), "0.1 % outliers": (0.001, 10.0)}
#: RMS error [%] of normal weights with 8 bits, expected within TOLERANCE.
EXPECTED, TOLERANCE = {"bf16": 0.17, INT8_NAME: 0.83, "THC, 8 bits": 0.64}, 0.1
#: With outliers, int8's error over THC's with as many bits.
OUTLIER_GAIN = 3


def thc(bits: int) -> tuple[float, Callable[[F32], F32]]:
    """Return the bits of a weight, and the weights that ranks decode."""
    matrix = ShardMatrix("weights", 1, COORDINATES, (ParameterSlice("w", 0, COORDINATES),))
    plan = gather_plan(matrix, bits)
    codes = HostCodes(plan, 0, RankCodec(RankCodes(bits=bits).resolve(1, sharded=True), 0))

    def gathered(weights: F32) -> F32:
        messages, out = torch.empty(1, plan.message.size_bytes, dtype=torch.uint8), torch.empty(COORDINATES)
        codes.encode(torch.from_numpy(weights), messages[0])
        codes.decode(messages, out)
        return out.numpy()

    return 8 * plan.message.size_bytes / COORDINATES, gathered


def int8(weights: F32) -> F64:
    return INT8(weights.astype(np.float64), np.empty(0))


def bf16(weights: F32) -> F32:
    return torch.from_numpy(weights).bfloat16().float().numpy()


def schemes() -> dict[str, tuple[float, Callable[[F32], F32 | F64]]]:
    """Return bits of a weight and gathered weights, by name."""
    others = {"bf16": (16.0, bf16), INT8_NAME: (INT8.bits, int8)}
    return others | {f"THC, {bits} bits": thc(bits) for bits in THC_BITS}


def weights(kind: str, seed: int) -> F32:
    random = np.random.default_rng([44, seed])
    share, factor = OUTLIERS[kind]
    values = random.standard_normal(COORDINATES)
    return np.where(random.random(COORDINATES) < share, factor * values, values).astype(np.float32)


def measure(quick: bool) -> Result:
    """See the module."""
    vectors = {kind: [weights(kind, seed) for seed in range(2 if quick else SEEDS)] for kind in OUTLIERS}
    every = schemes()
    errors = {
        name: {kind: [100 * math.sqrt(nmse(gather(one), one)) for one in own] for kind, own in vectors.items()}
        for name, (_, gather) in every.items()
    }
    means = {name: {kind: statistics.mean(own) for kind, own in by_kind.items()} for name, by_kind in errors.items()}
    normal, outliers = OUTLIERS
    checks = [
        Check(
            f"RMS error of normal weights, {name}",
            f"{wanted} % ± {TOLERANCE:.0%}",
            f"{mean_and_spread(errors[name][normal], 3)} %",
            abs(means[name][normal] / wanted - 1) <= TOLERANCE,
        )
        for name, wanted in EXPECTED.items()
    ]
    gain = means[INT8_NAME][outliers] / means["THC, 8 bits"][outliers]
    checks += [
        Check(
            "int8's RMS error over THC's with 8 bits, 0.1 % outliers",
            f">= {OUTLIER_GAIN}x",
            f"{gain:.1f}x",
            gain >= OUTLIER_GAIN,
        ),
        Check(
            "RMS error of THC with 7 bits, 0.1 % outliers",
            "below int8's",
            f"{means['THC, 7 bits'][outliers]:.2f} % and {means[INT8_NAME][outliers]:.2f} %",
            means["THC, 7 bits"][outliers] < means[INT8_NAME][outliers],
        ),
    ]
    cells = [["scheme", "bits of a weight", *OUTLIERS]]
    for name, (bits, _) in every.items():
        cells.append([name, f"{bits:.2f}", *(mean_and_spread(errors[name][kind], 3) for kind in OUTLIERS)])
    return Result(checks, [Table("RMS error of gathered weights [% of their RMS]", cells)], data=errors)


CLAIM = Claim(
    name="gathered_weights",
    title="Error of gathered weights",
    figure="none (ZeRO++)",
    paper="int8 with a scale for each block keeps the accuracy of bf16 gathers (ZeRO++)",
    stand_in=(
        "A million normal weights stand in for a model's. In a second set, 0.1 % of the weights are 10 times larger. "
        "int8 is written anew, with a float32 scale for each block of 2048. THC's codes are the package's."
    ),
    minutes=1,
    measure=measure,
)
