import random

import pytest
from model_infos import constant_entry, table_info

from thc_p4_model.errors import ControlError
from thc_p4_model.interfaces import P4Error
from thc_p4_model.tables import MAX_REMEMBERED, Table

MISS = (2, (), False)


def test_exact_hit_miss_modify_and_delete():
    table = Table(table_info(("codes", "exact", 8)), 1024)
    assert table.match(5) == MISS
    table.add({"codes": 5}, "set", {"value": 7})
    assert table.match(5) == (0, (7,), True)
    assert table.match(6) == MISS
    table.modify([5], "In.drop")
    assert table.match(5) == (1, (), True)
    table.delete([5])
    assert table.match(5) == MISS


def test_a_match_function_taken_early_sees_later_changes():
    table = Table(table_info(("codes", "exact", 8)), 1024)
    match = table.match
    assert match(1) == MISS
    table.add([1], "set", [2])
    table.set_default("set", [9])
    assert match(1) == (0, (2,), True)
    assert match(2) == (0, (9,), False)
    table.reset_default()
    assert match(2) == MISS


def test_several_exact_keys():
    table = Table(table_info(("hdr.a", "exact", 8), ("hdr.b", "exact", 16)), 1024)
    table.add({"b": 2, "a": 1}, "set", [3])
    assert table.match(1, 2) == (0, (3,), True)
    assert table.match(2, 1) == MISS


def test_longest_prefix_wins_whatever_the_order():
    table = Table(table_info(("dst", "lpm", 32)), 1024)
    table.add({"dst": (0x0A000000, 8)}, "set", [8])
    table.add({"dst": (0x0A010000, 16)}, "set", [16])
    table.add({"dst": None}, "set", [0])
    assert table.match(0x0A010203) == (0, (16,), True)
    assert table.match(0x0A020304) == (0, (8,), True)
    assert table.match(0x0B000000) == (0, (0,), True)


def test_lpm_beside_an_exact_key():
    table = Table(table_info(("vrf", "exact", 4), ("dst", "lpm", 8)), 1024)
    table.add([1, (0xF0, 4)], "set", [4])
    table.add([1, (0xFF, 8)], "set", [8])
    table.add([2, (0, 0)], "set", [0])
    assert [table.match(1, 0xF1)[1], table.match(1, 0xFF)[1], table.match(2, 0xFF)[1]] == [(4,), (8,), (0,)]
    assert table.match(3, 0xFF) == MISS


def test_smallest_priority_wins_among_ternary_and_range():
    table = Table(table_info(("kind", "ternary", 8), ("slot", "range", 16)), 1024)
    table.add({"kind": (2, 0xFF), "slot": (0, 100)}, "set", [1], priority=10)
    table.add({"kind": None, "slot": (50, 60)}, "set", [2], priority=5)
    assert table.match(2, 49) == (0, (1,), True)
    assert table.match(2, 50) == (0, (2,), True)
    assert table.match(9, 60) == (0, (2,), True)
    assert table.match(9, 61) == MISS


def test_values_are_compared_under_their_mask():
    table = Table(table_info(("key", "ternary", 8)), 1024)
    table.add([(0xAB, 0xF0)], "set", [1], priority=0)
    assert table.match(0xA0) == (0, (1,), True)
    assert table.entries()[0].match == ((0xA0, 0xF0),)


def test_ternary_against_a_scan_over_random_entries():
    numbers = random.Random(1)
    table = Table(table_info(("key", "ternary", 8)), 1024)
    entries = {}
    for priority in numbers.sample(range(1000), 60):
        mask = numbers.randrange(256)
        entries[priority] = (numbers.randrange(256) & mask, mask, priority % 256)
        table.add([entries[priority][:2]], "set", [priority % 256], priority=priority)
    for key in range(256):
        hits = [result for _, (value, mask, result) in sorted(entries.items()) if key & mask == value]
        assert table.match(key) == ((0, (hits[0],), True) if hits else MISS)


def test_constant_entries_match_in_their_order_and_stay():
    entries = (constant_entry(((1, 1),), 11, 0), constant_entry(((0, 0),), 22, 1))
    table = Table(table_info(("key", "ternary", 8), entries=entries), 1024)
    assert table.match(3) == (0, (11,), True)
    assert table.match(2) == (0, (22,), True)
    with pytest.raises(ControlError, match="constant"):
        table.clear()


def test_a_full_table_says_so():
    table = Table(table_info(("key", "exact", 8), size=2), 1024)
    table.add([1], "drop")
    table.add([2], "drop")
    with pytest.raises(ControlError, match="full: it has 2 entries"):
        table.add([3], "drop")
    table.delete([1])
    table.add([3], "drop")


def test_the_architecture_decides_the_size_where_the_program_does_not():
    table = Table(table_info(("key", "exact", 8)), 1)
    table.add([1], "drop")
    with pytest.raises(ControlError, match="full"):
        table.add([2], "drop")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.add([256], "drop"), "too small for 0x100"),
        (lambda t: t.add([1], "set", [256]), "parameter value of In.set is a bit<8>, too small"),
        (lambda t: t.add([1], "set", {"worth": 1}), r"takes \['value'\], not \['worth'\]"),
        (lambda t: t.add([1], "sett", [1]), "did you mean In.set"),
        (lambda t: t.add([1, 2], "drop"), "2 keys given for 1: key"),
        (lambda t: t.add({"kye": 1}, "drop"), "'kye' is not there: key"),
        (lambda t: t.add([None], "drop"), "exact key key needs a value"),
        (lambda t: t.delete([1]), "no entry"),
        (lambda t: t.add(["x"], "drop"), "takes an integer"),
    ],
)
def test_wrong_control_plane_calls_are_explained(change, message):
    with pytest.raises(ControlError, match=message):
        change(Table(table_info(("key", "exact", 8)), 1024))


def test_an_entry_is_added_once():
    table = Table(table_info(("key", "exact", 8)), 1024)
    table.add([1], "drop")
    with pytest.raises(ControlError, match="already"):
        table.add([1], "drop")


def test_ternary_entries_need_a_priority_and_may_be_deleted_without():
    table = Table(table_info(("key", "ternary", 8)), 1024)
    with pytest.raises(ControlError, match="needs a priority"):
        table.add([1], "drop")
    table.add([1], "drop", priority=3)
    table.add([1], "drop", priority=4)
    with pytest.raises(ControlError, match="several priorities"):
        table.delete([1])
    table.delete([1], priority=3)
    table.delete([1])
    assert table.entries() == []


def test_constant_default_actions_stay():
    with pytest.raises(ControlError, match="constant"):
        Table(table_info(("key", "exact", 8), const_default=True), 1024).set_default("drop")


def test_unknown_match_kinds_name_the_line():
    with pytest.raises(P4Error, match=r"test.p4:7: .*selector"):
        Table(table_info(("key", "selector", 8)), 1024)


def test_remembered_lookups_are_bounded():
    table = Table(table_info(("key", "exact", 32)), 1024)
    table.add([1], "drop")
    for key in range(MAX_REMEMBERED + 10):
        table.match(key)
    assert len(table._remembered) <= MAX_REMEMBERED
    assert table.match(1) == (1, (), True)
