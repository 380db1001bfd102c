from collections.abc import Callable
from typing import Any

import pytest

from thc_p4_model.errors import ControlError
from thc_p4_model.interfaces import ActionCall, P4Error

PROGRAM = """
match_kind {{ range, optional }}
struct data_t {{ bit<8> x; bit<16> y; bool z; }}
control C(inout data_t d);
package Top(C c);
control Inner(inout data_t d) {{
    {declarations}
    apply {{ {apply} }}
}}
control Outer(inout data_t d) {{
    Inner() first;
    @name("renamed") Inner() second;
    apply {{ first.apply(d); if (d.z) {{ second.apply(d); }} }}
}}
Top(Outer()) main;
"""
SET = "action set(bit<16> v) { d.y = v; } action add(in bit<8> a, bit<16> v) { d.y = d.y + v + (bit<16>)a; } "


@pytest.fixture
def program(instantiate: Callable[..., Any]) -> Callable[..., tuple[Any, Callable[..., int]]]:
    """An instance, and a function that runs it and gives y."""

    def make(declarations: str, apply: str) -> tuple[Any, Callable[..., int]]:
        instance = instantiate(PROGRAM.format(declarations=SET + declarations, apply=apply))
        block = instance.main.args["c"]

        def run(x: int, y: int = 0, z: bool = False) -> int:
            data = block.params[0].type.new()
            data.x, data.y, data.z = x, y, z
            block.apply(data)
            return int(data.y)

        return instance, run

    return make


TERNARY = """
    table t {
        key = { d.x: ternary; d.y: range @name("port"); d.z: optional; }
        actions = { set; add(d.x); @defaultonly NoAction; }
        const entries = {
            (0x10 &&& 0xf0, 5 .. 9, _): set(1);
            (0x12, _, true): add(100);
            (_, 7, _): set(3);
        }
        const default_action = set(0xffff);
    }
"""


@pytest.mark.parametrize(("x", "y", "z", "result"), [(0x12, 5, False, 1), (0x12, 4, True, 240), (0x40, 7, False, 3)])
def test_entries_in_order(program: Callable[..., Any], x: int, y: int, z: bool, result: int) -> None:
    # If z is set, `renamed` runs a second time.
    instance, run = program(TERNARY, "t.apply();")
    assert run(x, y, z) == result
    assert instance.table_infos["Outer.first.t"].entries[0].match == ((0x10, 0xF0), (5, 9), (0, 0))


def test_what_the_runtime_is_told(program: Callable[..., Any]) -> None:
    instance, _run = program(TERNARY.replace("key =", "size = 32; key ="), "t.apply();")
    assert set(instance.tables) == {"Outer.first.t", "Outer.renamed.t"}
    info = instance.table_infos["Outer.renamed.t"]
    assert [(key.name, key.match_kind, key.width) for key in info.keys] == [
        ("d.x", "ternary", 8),
        ("port", "range", 16),
        ("d.z", "optional", 1),
    ]
    assert [action.name for action in info.actions] == ["Outer.renamed.set", "Outer.renamed.add", "NoAction"]
    assert [param.name for param in info.actions[1].params] == ["v"]
    assert (info.actions[2].default_only, info.const_entries, info.const_default_action) == (True, True, True)
    assert (info.default_action, info.size) == (ActionCall(0, (0xFFFF,)), 32)
    assert info.location.line > 1


def test_priorities(program: Callable[..., Any]) -> None:
    entries = "const entries = { 0x1 &&& 0x1: set(1) @priority(3); 0x3: set(2); 0x7 &&& 0x3: set(3) @priority(1); }"
    _instance, run = program(f"table t {{ key = {{ d.x: ternary; }} actions = {{ set; }} {entries} }}", "t.apply();")
    assert [run(1), run(3), run(5), run(7)] == [1, 3, 1, 3]


def test_given_priorities(program: Callable[..., Any]) -> None:
    entries = "entries = { priority = 1: 0x1 &&& 0x1: set(1); priority = 9: 0x3 &&& 0x3: set(2); }"
    _instance, run = program(f"table t {{ key = {{ d.x: ternary; }} actions = {{ set; }} {entries} }}", "t.apply();")
    assert [run(1), run(3)] == [1, 2]


def priorities_of(program: Callable[..., Any], properties: str) -> list[int]:
    """The priorities of a table's entries, first the entry that wins."""
    table = f"table t {{ key = {{ d.x: ternary; }} actions = {{ set; }} {properties} }}"
    instance, _run = program(table, "t.apply();")
    entries = instance.table_infos["Outer.first.t"].entries
    assert [entry.action.args[0] for entry in sorted(entries, key=lambda entry: entry.priority)] == sorted(
        entry.action.args[0] for entry in entries
    )
    return sorted(entry.priority for entry in entries)


def entries_of(*lines: str, before: str = "entries") -> str:
    return f"{before} = {{ {' '.join(lines)} }}"


# Expected: the comments of p4c's testdata/p4_16_samples/init-entries-bmv2.p4, t1, t2 and t5; where the largest wins,
# 1 + largest - priority. The arguments of the actions are the order in which entries win.
@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (
            "largest_priority_wins = false; priority_delta = 10;"
            + entries_of(
                "const priority = 11: 1: set(1); 2: set(2); 3: set(3); const 4: set(5);",
                "priority = 40: 5 &&& 0xf: set(4); 6: set(6);",
            ),
            [11, 21, 31, 40, 41, 50],
        ),
        (
            "priority_delta = 100;"
            + entries_of(
                "priority = 1000: 1: set(1); 2: set(3); 3: set(5); 4: set(6);", "priority = 901: 5: set(2); 6: set(4);"
            ),
            [1, 100, 101, 200, 201, 301],
        ),
        (entries_of("priority = 3: 1: set(2); 2: set(3); priority = 7: 3: set(1);"), [1, 5, 6]),
        ("priority_delta = 7;" + entries_of("1: set(1); 2: set(2); 3: set(3);"), [1, 8, 15]),
        ("priority_delta = 7;" + entries_of("1: set(1); 2: set(2);", before="const entries"), [1, 2]),
        ("largest_priority_wins = false;" + entries_of("1: set(1); 2: set(2);"), [1, 2]),
    ],
)
def test_priorities_that_are_not_given(program: Callable[..., Any], properties: str, expected: list[int]) -> None:
    assert priorities_of(program, properties) == expected


def test_entries_of_one_priority_match_in_order(program: Callable[..., Any]) -> None:
    entries = entries_of("priority = 5: 1 &&& 1: set(1); priority = 5: _: set(2);")
    _instance, run = program(f"table t {{ key = {{ d.x: ternary; }} actions = {{ set; }} {entries} }}", "t.apply();")
    assert [run(1), run(2)] == [1, 2]


def test_const_entries_among_others(program: Callable[..., Any]) -> None:
    entries = entries_of("const 1: set(1); 2: set(2);")
    instance, run = program(f"table t {{ key = {{ d.x: exact; }} actions = {{ set; }} {entries} }}", "t.apply();")
    table = instance.tables["Outer.first.t"]
    for change in (lambda: table.modify([1], "set", [9]), lambda: table.delete([1])):
        with pytest.raises(ControlError, match=r"entry for .* is constant"):
            change()
    table.modify([2], "set", [9])
    table.add([3], "set", [3])
    assert [run(1), run(2), run(3)] == [1, 9, 3]
    table.clear()
    assert [run(1), run(2), run(3)] == [1, 0, 0]


def test_lpm(program: Callable[..., Any]) -> None:
    entries = "const entries = { 0x10 &&& 0xf0: set(1); 0x18 &&& 0xf8: set(2); _: set(3); }"
    instance, run = program(f"table t {{ key = {{ d.x: lpm; }} actions = {{ set; }} {entries} }}", "t.apply();")
    assert [run(0x11), run(0x19), run(0x20)] == [1, 2, 3]
    assert [entry.match for entry in instance.table_infos["Outer.first.t"].entries] == [
        ((0x10, 4),),
        ((0x18, 5),),
        ((0, 0),),
    ]


TWO = """
    table t {
        key = { d.x: exact; }
        actions = { set; add(d.x); NoAction; }
        const entries = { 1: set(5); 2: add(6); 3: NoAction(); }
    }
"""


@pytest.mark.parametrize(
    ("apply", "results"),
    [
        ("if (t.apply().hit) { d.y = d.y + 1; }", [6, 9, 1, 0]),
        ("if (t.apply().miss) { d.y = 77; }", [5, 8, 0, 77]),
        ("if (!t.apply().hit || d.y == 5) { d.y = 78; }", [78, 8, 0, 78]),
        ("switch (t.apply().action_run) { set: { d.y = 10; } add: NoAction: { d.y = 20; } }", [10, 20, 20, 20]),
        ("switch (t.apply().action_run) { set: { d.y = 10; } default: { d.y = 20; } }", [10, 20, 20, 20]),
        ("bool was = t.apply().hit; if (was) { d.y = 1; }", [1, 1, 1, 0]),
    ],
)
def test_what_apply_tells(program: Callable[..., Any], apply: str, results: list[int]) -> None:
    _instance, run = program(TWO, apply)
    assert [run(x) for x in (1, 2, 3, 4)] == results


@pytest.mark.parametrize(
    ("key", "first", "second"), [("exact", "1", "1"), ("lpm", "0x10 &&& 0xf0", "0x1f &&& 0xf0"), ("lpm", "_", "_")]
)
def test_constant_entries_with_one_key_are_errors(
    program: Callable[..., Any], key: str, first: str, second: str
) -> None:
    entries = f"{first} : set(1);\n{second} : set(2);"
    table = f"table t {{ key = {{ d.x : {key}; }} actions = {{ set; }}\nconst entries = {{ {entries} }} }}"
    with pytest.raises(P4Error, match="has an entry with this key already"):
        program(table, "t.apply();")
