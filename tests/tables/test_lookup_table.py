import _core_test
import pytest

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._scheme.adding.tables import CODE_BITS, LookupTable


@pytest.mark.parametrize(
    ("granularity", "values", "cost", "reason"),
    [
        (4, (0, 1, 3), 0.1, "has 4 values"),
        (4, (1, 2, 3, 4), 0.1, "runs from 0"),
        (4, (0, 1, 2, 3), 0.1, "to granularity 4"),
        (4, (0, 3, 1, 4), 0.1, "increase strictly"),
        (4, (0, 1, 1, 4), 0.1, "increase strictly"),
        (4, (0, 1, 3, 4), float("nan"), "cost"),
        (4, (0, 1, 3, 4), -1.0, "cost"),
        # Codes are left over.
        (2, (0, 1, 2, 1), 0.1, "runs from 0"),
        (2, (0, 2, 2, 2), 0.1, "increase strictly"),
        (2, (0, 1, 1, 2), 0.1, "increase strictly"),
    ],
)
def test_invalid_tables_are_refused(granularity, values, cost, reason):
    with pytest.raises(ConfigurationError, match=reason):
        LookupTable(2, granularity, 1 / 32, values, cost)


@pytest.mark.parametrize(("bits", "granularity"), [(4, 7), (4, 14), (4, 1), (8, 100), (2, 2)])
def test_a_small_granularity_leaves_codes_over(bits, granularity):
    table = LookupTable.solve(bits, granularity, 1 / 32)
    assert table.values == tuple(min(code, granularity) for code in range(1 << bits))
    assert table.levels == granularity + 1
    if granularity in (1, 7):  # the costs of a table of fewer bits
        narrow = LookupTable.uniform(granularity.bit_length(), 1 / 32)
        assert (table.cost, table.shared_variance) == (narrow.cost, pytest.approx(narrow.shared_variance, rel=1e-9))


@pytest.mark.parametrize("bits", CODE_BITS)
def test_uniform_tables_are_the_identity(bits):
    table = LookupTable.uniform(bits)
    assert table.values == tuple(range(1 << bits))
    assert table.granularity == len(table.values) - 1


@pytest.mark.parametrize(
    "table",
    [LookupTable.paper(), LookupTable.uniform(8), LookupTable.solve(1, 7, 0.1), LookupTable.solve(4, 7, 0.1)],
)
def test_hash_equals_that_of_the_kernels(table):
    assert table.hash == _core_test.table_hash(table.bits, table.array)


def test_paper_setting():
    table = LookupTable.paper()
    assert (table.bits, table.granularity, table.p) == (4, 30, 1 / 32)
    assert table.threshold == pytest.approx(2.15387, abs=1e-5)
