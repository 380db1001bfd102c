"""The study's fast THC is THC: it gives the reference's average and residuals."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from averages.averaging import Averager, Scheme, Table, average_partition, hadamard

from byteps_thc.rounding import Rounding
from byteps_thc.tables import LookupTable

WORKERS, COORDINATES = 4, 5000
ROUNDINGS = [Rounding.of("independent", worker, WORKERS) for worker in range(WORKERS)]
TABLE = LookupTable.solve(4, 38, 1 / 64)


@pytest.mark.parametrize("ends", [(), (1280, 1408)])
@pytest.mark.parametrize("rotation_block", [256, 1024, 8192])
def test_average_and_residuals_are_the_reference_s(rotation_block: int, ends: tuple[int, ...]) -> None:
    random = np.random.default_rng(1)
    gradients = random.standard_normal((WORKERS, COORDINATES)).astype(np.float32)
    gradients *= np.linspace(0.5, 2, COORDINATES, dtype=np.float32)
    key = reference.Key(seed=3, tensor=1, round=2)
    rotated, norms = zip(*(reference.rotate(g, None, rotation_block, key, ends) for g in gradients), strict=True)
    maxima, padded = reference.max_norms(list(norms)), len(rotated[0])
    quantized = [
        reference.quantize(
            r, maxima, COORDINATES, rotation_block, TABLE.values, TABLE.threshold, key, rounding, ends=ends
        )
        for rounding, r in zip(ROUNDINGS, rotated, strict=True)
    ]
    sums = reference.lookup_sum([q.codes for q in quantized], TABLE.values).astype(np.uint8)
    contributions = np.full(-(-padded // 1024), WORKERS, np.uint8)
    shape = (COORDINATES, 1024, rotation_block, TABLE.granularity, TABLE.threshold)
    expected = reference.decode(sums, contributions, maxima, *shape, key, ends=ends)
    residuals = [reference.inverse_rotate(q.error, COORDINATES, rotation_block, key, ends) for q in quantized]

    bits = np.stack([reference.rounding_bits(padded, key, rounding) for rounding in ROUNDINGS]).astype(np.int32)
    average, lost = average_partition(
        torch.from_numpy(gradients),
        Scheme(Table.of(TABLE), rotation_block),
        torch.from_numpy(reference.signs(padded, key)),
        torch.from_numpy(bits),
        ends,
    )
    # Rounding of floats may turn a code or two.
    assert np.square(average.numpy() - expected).sum() < 1e-4 * np.square(expected - gradients.mean(axis=0)).sum()
    for residual, own in zip(residuals, lost.numpy(), strict=True):
        assert np.square(own - residual).sum() < 1e-4 * np.square(residual).sum()


def test_interleaving_permutes_and_nothing_is_lost() -> None:
    gradients = torch.randn(WORKERS, COORDINATES, generator=torch.Generator().manual_seed(1))
    scheme = Scheme(Table(tuple(range(256)), 6.0), 256, interleaved=True, error_feedback=True)
    averager = Averager(scheme, [slice(0, 1000), slice(1000, COORDINATES)])
    average = averager.average(gradients)
    assert averager.residual is not None
    torch.testing.assert_close(average + averager.residual.mean(dim=0), gradients.mean(dim=0))
    assert float((average - gradients.mean(dim=0)).square().mean()) < 1e-3


def test_stratified_rounding_errs_less_on_average_and_as_much_per_worker() -> None:
    gradients = torch.randn(WORKERS, 1 << 16, generator=torch.Generator().manual_seed(1))
    errors, residuals = {}, {}
    for rounding in ("independent", "stratified"):
        averager = Averager(Scheme(Table.of(TABLE), 8192, rounding, error_feedback=True), [slice(0, 1 << 16)])
        errors[rounding] = float((averager.average(gradients) - gradients.mean(dim=0)).square().mean())
        assert averager.residual is not None
        residuals[rounding] = float(averager.residual.square().mean())
    assert errors["stratified"] < 0.8 * errors["independent"]
    assert residuals["stratified"] == pytest.approx(residuals["independent"], rel=0.03)


def test_hadamard_is_the_reference_s() -> None:
    x = torch.randn(3, 512, generator=torch.Generator().manual_seed(1))
    expected = np.stack([reference.hadamard(row) for row in x.numpy()])
    torch.testing.assert_close(hadamard(x), torch.from_numpy(expected), rtol=1e-4, atol=1e-4)
