import pytest

from byteps_thc import ThcConfig
from byteps_thc.errors import ConfigurationError
from byteps_thc.tables import CODE_BITS, LookupTable, solve_grid
from byteps_thc.tables.selection import best_table, expected_error
from byteps_thc.tables.store import GRID_P


@pytest.mark.parametrize("workers", [1, 4, 8, 15, 17])
@pytest.mark.parametrize("error_feedback", [True, False])
def test_choice_is_the_best_of_a_fresh_search(workers, error_feedback):
    chosen = best_table(4, workers, error_feedback=error_feedback)
    fractions = [p for p in GRID_P if error_feedback or workers < 4 or p <= 1 / 256]
    solved = solve_grid([4], range(15, min(51, 255 // workers) + 1), fractions)
    best = min(solved, key=lambda table: expected_error(table, workers, error_feedback))
    assert (chosen.granularity, chosen.p, chosen.values) == (best.granularity, best.p, best.values)


@pytest.mark.parametrize("bits", CODE_BITS)
@pytest.mark.parametrize("workers", [1, 2, 4, 8, 15, 17, 18, 33, 64])
def test_sums_fit_and_clamping_is_limited(bits, workers):
    value_bits = 8 if ((1 << bits) - 1) * workers < 256 else 16
    for error_feedback in (True, False):
        table = best_table(bits, workers, value_bits, error_feedback)
        assert table.granularity * workers < 1 << value_bits
        if not error_feedback and workers >= 4:
            assert table.p <= 1 / 256


def test_better_than_the_papers_setting_where_both_fit():
    paper = LookupTable.paper()
    for workers in range(1, 9):
        for error_feedback in (True, False):
            chosen = best_table(4, workers, error_feedback=error_feedback)
            if error_feedback or workers < 4:
                assert expected_error(chosen, workers, error_feedback) <= expected_error(paper, workers, error_feedback)


@pytest.mark.parametrize("error_feedback", [True, False])
@pytest.mark.parametrize("workers", [1, 2, 4, 8, 17, 18, 64])
def test_packed_sums_take_the_fewest_bits_that_cost_little(workers, error_feedback):
    value_bits = 8 if 15 * workers < 256 else 16
    best = best_table(4, workers, value_bits, error_feedback)
    chosen = best_table(4, workers, value_bits, error_feedback, packed_sums=True)
    tolerated = 1.05 * expected_error(best, workers, error_feedback)
    assert expected_error(chosen, workers, error_feedback) <= tolerated
    bits = (chosen.granularity * workers).bit_length()
    assert bits <= (best.granularity * workers).bit_length()
    largest = ((1 << (bits - 1)) - 1) // workers  # with a bit less
    if largest >= 15:
        fractions = [p for p in GRID_P if error_feedback or workers < 4 or p <= 1 / 256]
        smaller = solve_grid([4], range(15, min(51, largest) + 1), fractions)
        assert all(expected_error(table, workers, error_feedback) > tolerated for table in smaller)


def test_packed_sums_of_four_workers_have_seven_bits():
    assert ThcConfig().resolve(4, packed_sums=True).sum_bits == 7
    assert ThcConfig().resolve(4).sum_bits == 8
    assert ThcConfig(granularity=15).resolve(4, packed_sums=True).sum_bits == 6
    assert ThcConfig().resolve(64, packed_sums=True).sum_bits == 11


def test_given_parameters_are_kept():
    assert best_table(4, 4, granularity=20).granularity == 20
    assert best_table(4, 4, p=1 / 100).p == 1 / 100
    assert best_table(4, 4, granularity=30, p=1 / 32) == LookupTable.paper()


@pytest.mark.parametrize("workers", [0, -3, 65])
def test_workers_out_of_range(workers):
    with pytest.raises(ConfigurationError, match=rf"workers must be in 1 .. 64, not {workers}"):
        best_table(4, workers, 16)


@pytest.mark.parametrize("value_bits", [0, 7, 32])
def test_value_bits_that_do_not_exist(value_bits):
    with pytest.raises(ConfigurationError, match=f"value_bits must be 8 or 16, not {value_bits}"):
        best_table(4, 4, value_bits)


def test_overflow_says_what_would_work():
    with pytest.raises(ConfigurationError, match=r"15 \* 18 workers = 270 .* at most 17 workers or value_bits=16"):
        best_table(4, 18)
    with pytest.raises(ConfigurationError, match=r"at most 8 workers or granularity at most 28 or value_bits=16"):
        best_table(4, 9, granularity=30)
