import pytest

from byteps_thc import ServerCodes
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._scheme.adding.tables import CODE_BITS, LookupTable, solve_grid
from byteps_thc._scheme.adding.tables.selection import best_table, expected_error
from byteps_thc._scheme.adding.tables.store import GRID_P


def fractions(error_feedback):
    """Return the values of p for up to 4 bits: with feedback real gradients need a larger p than normal vectors."""
    return [p for p in GRID_P if p >= 1 / 64 or not error_feedback]


@pytest.mark.parametrize("workers", [1, 4, 8, 15, 17])
@pytest.mark.parametrize("error_feedback", [True, False])
def test_choice_is_the_best_of_a_fresh_search(workers, error_feedback):
    chosen = best_table(4, workers, error_feedback=error_feedback)
    solved = solve_grid([4], range(15, min(51, 255 // workers) + 1), fractions(error_feedback))
    best = min(solved, key=lambda table: expected_error(table, workers, error_feedback))
    assert (chosen.granularity, chosen.p, chosen.values) == (best.granularity, best.p, best.values)


@pytest.mark.parametrize("bits", CODE_BITS)
@pytest.mark.parametrize("workers", [1, 2, 4, 8, 15, 17, 18, 33, 64])
def test_sums_fit(bits, workers):
    value_bits = 8 if ((1 << bits) - 1) * workers < 256 else 16
    for error_feedback in (True, False):
        table = best_table(bits, workers, value_bits, error_feedback)
        assert table.granularity * workers < 1 << value_bits


def test_better_than_the_papers_setting_where_both_fit():
    paper = LookupTable.paper()
    for workers in range(1, 9):
        for error_feedback in (True, False):
            chosen = best_table(4, workers, error_feedback=error_feedback)
            assert expected_error(chosen, workers, error_feedback) <= expected_error(paper, workers, error_feedback)


@pytest.mark.parametrize("bits", CODE_BITS)
@pytest.mark.parametrize("workers", [1, 2, 4, 17, 64, 257, 1024])
def test_chosen_tables_contract(bits, workers):
    """Error feedback adds less to the next gradient than before: the residual stays bounded."""
    table = best_table(bits, workers, 16, True)
    assert table.cost + table.clamp_cost < 0.5


@pytest.mark.parametrize("bits", CODE_BITS)
def test_more_workers_do_not_err_more(bits):
    """As long as sums of any granularity fit."""
    errors = [expected_error(best_table(bits, workers, 16, False), workers, False) for workers in (1, 2, 3, 4, 8)]
    assert errors == sorted(errors, reverse=True)


def test_a_table_that_hardly_contracts_is_refused():
    with pytest.raises(ConfigurationError, match=r"p = 0\.21 lose 0\.99 times .* would grow to \d+ times"):
        ServerCodes(bits=1, p=0.21, error_feedback=True).resolve(4)


def test_a_table_that_diverges_is_refused():
    with pytest.raises(ConfigurationError, match=r"1-bit codes .* p = 0\.03125 lose 3\.70 times .* grow without end"):
        ServerCodes(bits=1, p=1 / 32, error_feedback=True).resolve(4)
    assert ServerCodes(bits=1, p=1 / 32).resolve(4).table.p == 1 / 32


def test_rounding_moves_the_balance_of_noise_and_clamping():
    """Stratified rounding makes noise smaller, so that a smaller clamp error pays."""
    less, more = (LookupTable.solve(4, 38, p) for p in (1 / 128, 1 / 64))
    assert expected_error(less, 4, True, "stratified") < expected_error(more, 4, True, "stratified")
    assert expected_error(less, 4, True, "independent") > expected_error(more, 4, True, "independent")
    assert best_table(4, 1, rounding="stratified") == best_table(4, 1, rounding="independent")
    assert best_table(4, 4, rounding="stratified").p < best_table(4, 4, rounding="independent").p
    assert ServerCodes().resolve(4).table == best_table(4, 4)
    assert ServerCodes(rounding="independent").resolve(4).table == best_table(4, 4, rounding="independent")


def test_the_chosen_tables_average_errs_least():
    for workers in (2, 4, 8, 17):
        stratified, independent = (best_table(4, workers, rounding=mode) for mode in ("stratified", "independent"))
        errors = [table.average_cost(workers) + table.clamp_cost for table in (stratified, independent)]
        assert errors[0] <= errors[1]


def test_given_parameters_are_kept():
    assert best_table(4, 4, granularity=20).granularity == 20
    assert best_table(4, 4, p=1 / 100).p == 1 / 100
    assert best_table(4, 4, granularity=30, p=1 / 32) == LookupTable.paper()


@pytest.mark.parametrize("workers", [0, -3, 1025])
def test_workers_out_of_range(workers):
    with pytest.raises(ConfigurationError, match=rf"workers must be in 1 .. 1024, not {workers}"):
        best_table(4, workers, 16)


@pytest.mark.parametrize("value_bits", [0, 7, 32])
def test_value_bits_that_do_not_exist(value_bits):
    with pytest.raises(ConfigurationError, match=f"value_bits must be 8 or 16, not {value_bits}"):
        best_table(4, 4, value_bits)


def test_overflow_says_what_would_work():
    with pytest.raises(ConfigurationError, match=r"15 \* 18 workers = 270 .* at most 17 workers or .* value_bits=16"):
        best_table(4, 18, granularity=15)
    with pytest.raises(ConfigurationError, match=r"at most 8 workers or granularity at most 28 or value_bits=16"):
        best_table(4, 9, granularity=30)
