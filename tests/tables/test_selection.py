import pytest

from byteps_thc.errors import ConfigurationError
from byteps_thc.tables import CODE_BITS, LookupTable, solve_grid
from byteps_thc.tables.selection import best_table, expected_error
from byteps_thc.tables.store import GRID_P


@pytest.mark.parametrize("workers", [1, 4, 8, 15, 17])
@pytest.mark.parametrize("error_feedback", [True, False])
def test_choice_is_the_best_of_a_fresh_search(workers, error_feedback):
    chosen = LookupTable.auto(4, workers, error_feedback=error_feedback)
    fractions = [p for p in GRID_P if error_feedback or workers < 4 or p <= 1 / 256]
    solved = solve_grid([4], range(15, min(51, 255 // workers) + 1), fractions)
    best = min(solved, key=lambda table: expected_error(table, workers, error_feedback))
    assert (chosen.granularity, chosen.p, chosen.values) == (best.granularity, best.p, best.values)


@pytest.mark.parametrize("bits", CODE_BITS)
@pytest.mark.parametrize("workers", [1, 2, 4, 8, 15, 17, 18, 33, 64])
def test_sums_fit_and_clamping_is_limited(bits, workers):
    value_bits = 8 if ((1 << bits) - 1) * workers < 256 else 16
    for error_feedback in (True, False):
        table = LookupTable.auto(bits, workers, value_bits, error_feedback)
        assert table.granularity * workers < 1 << value_bits
        if not error_feedback and workers >= 4:
            assert table.p <= 1 / 256


def test_better_than_the_papers_setting_where_both_fit():
    paper = LookupTable.paper()
    for workers in range(1, 9):
        for error_feedback in (True, False):
            chosen = LookupTable.auto(4, workers, error_feedback=error_feedback)
            if error_feedback or workers < 4:
                assert expected_error(chosen, workers, error_feedback) <= expected_error(paper, workers, error_feedback)


def test_given_parameters_are_kept():
    assert best_table(4, 4, granularity=20).granularity == 20
    assert best_table(4, 4, p=1 / 100).p == 1 / 100
    assert best_table(4, 4, granularity=30, p=1 / 32) == LookupTable.paper()


@pytest.mark.parametrize("workers", [0, -3, 65])
def test_workers_out_of_range(workers):
    with pytest.raises(ConfigurationError, match=rf"workers must be in 1 .. 64, not {workers}"):
        LookupTable.auto(4, workers, 16)


@pytest.mark.parametrize("value_bits", [0, 7, 32])
def test_value_bits_that_do_not_exist(value_bits):
    with pytest.raises(ConfigurationError, match=f"value_bits must be 8 or 16, not {value_bits}"):
        LookupTable.auto(4, 4, value_bits)


def test_overflow_says_what_would_work():
    with pytest.raises(ConfigurationError, match=r"15 \* 18 workers = 270 .* at most 17 workers or value_bits=16"):
        LookupTable.auto(4, 18)
    with pytest.raises(ConfigurationError, match=r"at most 8 workers or granularity at most 28 or value_bits=16"):
        best_table(4, 9, granularity=30)
