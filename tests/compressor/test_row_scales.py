"""Rows with scales: zeros of all workers stay zero, and a row errs in proportion to its own norm."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_oracle import ServerOracle

from byteps_thc import Compressor, ServerCodes
from byteps_thc._native import _core
from byteps_thc._scheme.adding.row_scales import ScaledRows
from byteps_thc._scheme.block_plan import BlockPlan, RowSpan, ends_array

WORKERS, ROWS = 4, 400
rng = np.random.default_rng(3)


class Job:
    """Workers that average gradients of one partition, round after round."""

    def __init__(self, config: ServerCodes, plan: BlockPlan) -> None:
        self.oracle, self.plan, self.round = ServerOracle(config, WORKERS), plan, 0

    def average(self, gradients: list[np.ndarray], dtype: Any = np.float32) -> np.ndarray:
        self.round += 1
        out = np.empty(len(gradients[0]), dtype)
        average: np.ndarray = self.oracle.average(gradients, out=out, round=self.round, plan=self.plan)
        return average


def sparse_gradients(width: int, dtype: Any = np.float32) -> tuple[list[np.ndarray], np.ndarray]:
    """Each worker has a tenth of the rows, of norms from 1e-4 to 1; and which coordinates no worker has."""
    scales = np.logspace(-4, 0, ROWS)[rng.permutation(ROWS), None]
    gradients = [
        (rng.standard_normal((ROWS, width)) * scales * (rng.random((ROWS, 1)) < 0.1)).astype(dtype).reshape(-1)
        for _ in range(WORKERS)
    ]
    return gradients, ~np.any(gradients, axis=0)


@pytest.mark.parametrize("width", [1, 7, 16, 32, 50, 256, 300, 1000])
@pytest.mark.parametrize("settings", [{}, {"bits": 5}, {"bits": 1}])
def test_zero_rows_stay_zero_and_others_err_by_their_own_norm(width: int, settings: dict[str, Any]) -> None:
    gradients, zero = sparse_gradients(width)
    size = ROWS * width
    average = Job(ServerCodes(**settings), BlockPlan((), (RowSpan(0, size, width),))).average(gradients)
    assert zero.sum() > size / 2
    assert not average[zero].any()
    assert not np.signbit(average[zero]).any()
    if width >= 32 and settings.get("bits") != 1:
        errors = np.square(average - np.mean(gradients, axis=0)).reshape(ROWS, width).sum(1)
        energy = np.square(np.mean(gradients, axis=0)).reshape(ROWS, width).sum(1)
        assert np.all(errors[energy > 0] < 0.1 * energy[energy > 0])


@pytest.mark.parametrize("bits", [4, 5])
def test_with_error_feedback_nothing_is_lost_in_the_long_run(bits: Any) -> None:
    config = ServerCodes(error_feedback=True, bits=bits)
    width, steps = 50, 60
    gradients, zero = sparse_gradients(width)
    job = Job(config, BlockPlan((), (RowSpan(0, 20_000, width),)))
    mean = np.mean([job.average(gradients) for _ in range(steps)], axis=0)
    exact = np.mean(gradients, axis=0)
    errors, energy = (np.square(x).reshape(ROWS, width).sum(1) for x in (mean - exact, exact))
    assert np.all(errors <= 2e-3 * energy)
    for partitions in job.oracle.partitions:
        residual = partitions["w"].residual
        assert residual is not None
        assert not residual[zero].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rows_between_other_tensors(dtype: Any) -> None:
    """A table behind a tensor and in front of one, within blocks; the others' bits stay as they were without rows."""
    width, first, last = 20, 10_000, 9_000
    gradients, zero = sparse_gradients(width, dtype)
    others = [rng.standard_normal(first + last).astype(dtype) for _ in range(WORKERS)]
    joined = [np.concatenate([o[:first], g, o[first:]]) for o, g in zip(others, gradients, strict=True)]
    rows = RowSpan(first, first + ROWS * width, width)
    config = ServerCodes(bits=5, rotation_block=1024)
    plans = BlockPlan((), (rows,)), BlockPlan()
    with_rows, without = (Job(config, plan).average(joined, dtype) for plan in plans)
    assert not with_rows[rows.start : rows.stop][zero].any()
    assert without[rows.start : rows.stop][zero].any()
    untouched = slice(0, first // 1024 * 1024)
    np.testing.assert_array_equal(with_rows[untouched], without[untouched])
    error = np.square(with_rows.astype(float) - np.mean(joined, axis=0, dtype=float)).sum()
    assert error < 0.01 * np.square(np.mean(joined, axis=0, dtype=float)).sum()


@pytest.mark.parametrize("feedback", [False, True])
def test_a_gradient_that_is_not_finite_is_seen_and_leaves_the_residual(feedback: bool) -> None:
    width = 32
    gradients, _ = sparse_gradients(width)
    config = ServerCodes(error_feedback=feedback, rotation_block=1024)
    job = Job(config, BlockPlan((), (RowSpan(0, ROWS * width, width),)))
    job.average(gradients)
    before = [job.oracle.residual(worker, "w") for worker in range(WORKERS)]
    for bad in (np.inf, -np.inf, np.nan):
        spoiled = [gradient.copy() for gradient in gradients]
        spoiled[2][5 * width + 3] = bad
        average = job.average(spoiled)
        assert np.isnan(average[:1024]).all(), "the whole block, as without rows"
        assert np.isfinite(average[1024:]).all()
        for worker, residual in enumerate(before):
            np.testing.assert_equal(job.oracle.residual(worker, "w"), residual)


def test_tiny_and_huge_rows() -> None:
    gradient = np.zeros(4 * 64, np.float32)
    gradient[:64], gradient[64:128], gradient[192:] = 1e-42, 1e-30, 1e36
    average = Job(ServerCodes(), BlockPlan((), (RowSpan(0, 256, 64),))).average(
        [gradient.copy() for _ in range(WORKERS)]
    )
    assert np.isfinite(average).all()
    assert not average[128:192].any()
    np.testing.assert_allclose(average[192:], 1e36, rtol=0.5)
    np.testing.assert_allclose(average[64:128], 1e-30, rtol=0.5)
    assert np.abs(average[:64]).max() < 1e-28


def test_bytes_of_the_norms() -> None:
    """Four bytes a row each way: of 12 bits a coordinate, 2.2 % for rows of 256, and less for longer ones."""
    compressor = Compressor(ServerCodes().resolve(WORKERS), workers=WORKERS, worker=0)
    for width, share in ((256, 0.022), (320, 0.018), (768, 0.01), (4096, 0.003)):
        size = 1000 * width
        norms, padded = compressor.sizes(size, BlockPlan((), (RowSpan(0, size, width),)))
        before, same = compressor.sizes(size)
        assert padded == same
        assert 8 * (norms - before) < share * size * 12 / 8


@st.composite
def plans(draw: st.DrawFn) -> tuple[int, BlockPlan]:
    size = draw(st.integers(1, 5000))
    edges = sorted(draw(st.sets(st.integers(0, size), min_size=2, max_size=6)))
    rows = []
    for start, stop in zip(edges[::2], edges[1::2], strict=False):
        width = draw(st.integers(1, 1500))
        rows.append(RowSpan(start, stop, width, draw(st.integers(0, width - 1))))
    ends = draw(st.sets(st.integers(1, 40).map(lambda i: 128 * i)))
    return size, BlockPlan(tuple(sorted(end for end in ends if end < size)), tuple(rows))


@given(plans())
def test_segments_are_rows_cut_where_blocks_end(case: tuple[int, BlockPlan]) -> None:
    size, plan = case
    sizes = _core.block_sizes(size, 512, ends_array(plan.ends))
    edges = np.concatenate([[0], np.cumsum(sizes)])
    rows = ScaledRows(plan.rows, sizes, size)
    covered = np.zeros(size, int)
    for start, count, block in zip(rows.starts.astype(int), rows.sizes.astype(int), rows.block, strict=True):
        assert count > 0
        assert edges[block] <= start < start + count <= edges[block + 1]
        covered[start : start + count] += 1
        for row in plan.rows:  # in no segment are coordinates of two rows, or of a row and none
            inside = np.arange(start, start + count)
            numbers = (inside - row.start + row.skipped) // row.width
            assert len(np.unique(np.where((inside >= row.start) & (inside < row.stop), numbers, -1))) == 1
    scaled = np.repeat(rows.scaled, sizes)[:size]
    np.testing.assert_array_equal(covered, scaled.astype(int))
    for row in plan.rows:
        assert scaled[row.start : row.stop].all()


@given(plans(), st.integers(0, 5000), st.integers(1, 5000))
def test_plan_of_a_part_is_the_plan_there(case: tuple[int, BlockPlan], start: int, length: int) -> None:
    size, plan = case
    span = slice(min(start, size - 1), min(start + length, size))

    def number_of(rows: tuple[RowSpan, ...], size: int) -> np.ndarray:
        numbers = np.full(size, -1)
        for i, row in enumerate(rows):
            inside = np.arange(row.start, row.stop)
            numbers[inside] = (inside - row.start + row.skipped) // row.width + 10_000 * i
        return numbers

    whole, part = number_of(plan.rows, size)[span], number_of(plan.within(span).rows, span.stop - span.start)
    np.testing.assert_array_equal(whole == -1, part == -1)
    np.testing.assert_array_equal(np.diff(whole) != 0, np.diff(part) != 0)
