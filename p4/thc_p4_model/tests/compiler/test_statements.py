from typing import Any

import pytest

from thc_p4_model.interfaces import P4Error

TYPES = """
header h_t { bit<8> a; bit<16> b; }
header g_t { bit<8> g; }
header_union u_t { h_t h; g_t g; }
struct in_t { bit<8> x; bit<8> y; }
enum bit<8> Code { ONE = 1, TWO = 2 }
enum Color { RED, GREEN }
bit<8> double(in bit<8> v) { return v + v; }
bit<8> bump(inout bit<8> v) { v = v + 1; return v; }
void swap(inout bit<8> a, inout bit<8> b) { bit<8> t = a; a = b; b = t; }
T same<T>(in T v) { return v; }
control Add(inout bit<8> v, in bit<8> amount)(bit<8> scale) {
    bit<8> step = amount * scale;
    apply { if (step == 0) { return; } v = v + step; }
}
control Clear(inout in_t s) { apply { s.x = 0; exit; } }
"""

CASES = {
    "if": ("if (d.x > 5) { d.y = 1; } else if (d.x == 5) { d.y = 2; } else d.y = 3;", {"x": 5}, {"y": 2}),
    "conditions stop early": ("if (d.x == 5 || bump(d.y) == 1) { d.z = 1; }", {"x": 5}, {"y": 0, "z": 1}),
    "conditions go on": ("if (d.x == 5 && bump(d.y) == 1) { d.z = 1; }", {"x": 5}, {"y": 1, "z": 1}),
    "operands are evaluated in order": ("d.z = d.x + bump(d.x) + d.x;", {"x": 1}, {"z": 5, "x": 2}),
    "choice evaluates one side": ("d.z = d.x == 0 ? bump(d.x) : bump(d.y);", {}, {"x": 1, "y": 0, "z": 1}),
    "switch": ("switch (d.x) { 1: { d.y = 1; } 2: 3: { d.y = 2; } default: { d.y = 9; } }", {"x": 2}, {"y": 2}),
    "switch default": ("switch (d.x) { 1: { d.y = 1; } default: { d.y = 9; } }", {"x": 7}, {"y": 9}),
    "variables begin with zero": ("bit<8> v; d.y = v + 1;", {}, {"y": 1}),
    "blocks have their own names": (
        "bit<8> v = 1; { bit<8> w = v + 1; d.x = w; } { bit<8> w; d.y = w; }",
        {},
        {"x": 2},
    ),
    "for": (
        "for (bit<8> i = 0; i < 5; i = i + 1) { if (i == 1) continue; if (i == 4) break; d.y += i; }",
        {},
        {"y": 5},
    ),
    "for in": ("for (bit<8> i in 2 .. 4) { d.y = d.y + i; }", {}, {"y": 9}),
    "assigning operators": (
        "d.x += 250; d.x |+|= 250; d.y = 3; d.y <<= 2; d.z -= 1;",
        {"x": 1},
        {"x": 255, "y": 12, "z": 255},
    ),
    "functions": ("d.y = double(double(d.x)); swap(d.y, d.z);", {"x": 3}, {"y": 0, "z": 12}),
    "generic functions": ("d.y = same(d.x); d.w = same<bit<16>>(7);", {"x": 3}, {"y": 3, "w": 7}),
    "controls with constructor arguments": ("twice.apply(d.x, 2); thrice.apply(d.y, 3);", {"x": 1}, {"x": 5, "y": 9}),
    "return leaves the control only": ("twice.apply(d.x, 0); d.y = 7;", {"x": 1}, {"x": 1, "y": 7}),
    "actions": ("plus(d.x, 4); d.y = 1;", {"x": 1}, {"x": 5, "y": 1, "z": 1}),
    "return leaves the action only": ("plus(d.x, 0); d.y = 1;", {"x": 1}, {"x": 1, "y": 1, "z": 0}),
    "return in a loop in an action": ("find(3); d.y = 9;", {}, {"x": 3, "y": 9}),
    "exit leaves everything": ("plus(d.x, 200); d.y = 1;", {"x": 1}, {"x": 201, "y": 0}),
    "exit in a control": ("Clear.apply(d.s); d.y = 1;", {}, {"y": 0}),
    "serializable enums": (
        "Code c = (Code)d.x; if (c == Code.TWO) { d.y = (bit<8>)Code.ONE + 1; }",
        {"x": 2},
        {"y": 2},
    ),
    "enums": ("Color c = Color.GREEN; if (c != Color.RED) { d.y = 1; }", {}, {"y": 1}),
    "structs are copied": ("in_t t = d.s; t.x = 9; d.s.y = t.x; d.x = d.s.x;", {}, {"x": 0}),
    "swapping fields": ("d.s.x = 1; d.s.y = 2; d.s = {d.s.y, d.s.x}; d.x = d.s.x; d.y = d.s.y;", {}, {"x": 2, "y": 1}),
    "named initialisers": ("d.s = {y = 4, x = 3}; d.x = d.s.x; d.y = d.s.y;", {}, {"x": 3, "y": 4}),
    "default initialisers": ("d.s = {x = 3, ...}; d.x = d.s.x; d.y = d.s.y;", {"y": 1}, {"x": 3, "y": 0}),
    "comparing structs": ("in_t t = {1, 2}; if (t == {1, 2} && t != d.s) { d.x = 1; }", {}, {"x": 1}),
    "tuples": ("tuple<bit<8>, bool> t = {d.x, true}; if (t[1]) { d.y = t[0]; }", {"x": 4}, {"y": 4}),
    "headers begin invalid": ("h_t h; if (!h.isValid()) { d.x = 1; }", {}, {"x": 1}),
    "writing an invalid header": ("h_t h; h.a = 3; d.x = h.a; h.setValid(); h.a = 4; d.y = h.a;", {}, {"x": 0, "y": 4}),
    "setInvalid": (
        "h_t h; h.setValid(); h.a = 3; h.setInvalid(); d.x = h.a; h.setValid(); d.y = h.a;",
        {},
        {"x": 0, "y": 0},
    ),
    "initialising a header": (
        "h_t h = {1, 2}; if (h.isValid()) { d.x = h.a; } h = {#}; d.y = h.a;",
        {"y": 3},
        {"x": 1, "y": 0},
    ),
    "header size": (
        "h_t h; d.x = (bit<8>)h.minSizeInBits(); d.y = (bit<8>)h_t.minSizeInBytes();",
        {},
        {"x": 24, "y": 3},
    ),
    "stacks": (
        "h_t[3] s; s[0] = {1, 0}; s[1] = {2, 0}; s.push_front(1); d.x = s[1].a; d.y = s[2].a;"
        " s.pop_front(2); if (!s[1].isValid() && s[0].isValid()) { d.z = s[0].a; }",
        {},
        {"x": 1, "y": 2, "z": 2},
    ),
    "stack index at run time": (
        "h_t[3] s; s[2] = {7, 0}; d.y = s[d.x].a; s[d.x].a = 8; d.z = s[2].a; d.x = 9; s[d.x].a = 1; d.x = s[d.x].a;",
        {"x": 2},
        {"x": 0, "y": 7, "z": 8},
    ),
    "unions have one valid member": (
        "u_t u; u.h.setValid(); u.h.a = 1; u.g = {5}; d.x = u.h.a; d.y = u.g.g; if (u.isValid()) { d.z = 1; }",
        {},
        {"x": 0, "y": 5, "z": 1},
    ),
    "arguments that overlap are copies": ("both(d.s, d.s.x); d.x = d.s.x; d.y = d.s.y;", {}, {"x": 5, "y": 0}),
    "a scalar and the object it belongs to": ("scalar(d.s.y, d.s); d.x = d.s.x; d.y = d.s.y;", {}, {"x": 7, "y": 5}),
    "the object before its scalar": ("object(d.s, d.s.y); d.x = d.s.x; d.y = d.s.y;", {}, {"x": 3, "y": 7}),
    "arguments are read before the object is reset": ("fill(d.s, d.s.x); d.x = d.s.x;", {}, {"x": 2}),
    "an action that uses its argument by name": ("by_name(d.s); d.x = d.s.x;", {}, {"x": 0}),
    "an action whose callee uses its argument by name": (
        "by_callee(d.s); d.x = d.s.x; d.y = d.s.y;",
        {},
        {"x": 0, "y": 4},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_statements(run_control: Any, case: str) -> None:
    code, values, expected = CASES[case]
    actions = """
        Add(2) twice;
        Add(3) thrice;
        action plus(inout bit<8> v, bit<8> amount) {
            if (amount == 0) { return; }
            v = v + amount;
            d.z = 1;
            if (amount == 200) { exit; }
        }
        action find(bit<8> wanted) {
            for (bit<8> i = 0; i < 10; i = i + 1) {
                d.x = i;
                if (i == wanted) { return; }
            }
            d.x = 99;
        }
        action both(inout in_t s, inout bit<8> x) { s.x = 3; x = x + 5; }
        action scalar(out bit<8> y, inout in_t s) { y = 7; s.x = y; s.y = 5; }
        action object(inout in_t s, out bit<8> y) { y = 7; s.x = 3; s.y = 5; }
        action fill(out in_t s, in bit<8> x) { s.x = x + 2; }
        action by_name(inout in_t s) { d.s.x = 9; }
        action inner() { d.s.x = 9; }
        action outer() { inner(); }
        action by_callee(inout in_t s) { s.y = 4; outer(); }
    """
    fields = "bit<8> x; bit<8> y; bit<8> z; bit<16> w; in_t s;"
    result = run_control(fields, code, values, before=actions, top=TYPES)
    assert {name: result[name] for name in expected} == expected


def test_copy_out_happens_on_exit(run_control: Any) -> None:
    result = run_control(
        "bit<8> x; bit<8> y;",
        "leave(d.x); d.y = 1;",
        {},
        before="action leave(inout bit<8> v) { v = 7; exit; }",
    )
    assert result == {"x": 7, "y": 0}


def test_long_expressions_and_chains(run_control: Any) -> None:
    chain = " else ".join(f"if (d.x == {value}) {{ d.y = {value + 1}; }}" for value in range(150))
    total = " + ".join(["d.x"] * 400)
    result = run_control("bit<8> x; bit<8> y; bit<16> z; bit<8> w;", f"{chain} d.w = {total};", {"x": 149})
    assert (result["y"], result["w"]) == (150, 400 * 149 % 256)


@pytest.mark.parametrize("x", [0, 1, 79, 80, 81, 150, 199, 200, 255])
def test_deeply_nested_ifs(run_control: Any, x: int) -> None:
    depth = 200  # Python's parser takes 100
    code = "d.y = 255;"
    for level in reversed(range(depth)):
        code = f"if (d.x > {level}) {{ {code} }} else {{ d.y = {level}; }} d.z = d.z + 1;"
    result = run_control("bit<8> x; bit<8> y; bit<8> z;", code, {"x": x})
    assert (result["y"], result["z"]) == (x if x < depth else 255, min(x + 1, depth))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("if (d.x == 1) {\n" * 5000 + "d.x = 2;" + "}" * 5000, r":(?!1:)\d+: the program is nested too deeply here"),
        ("d.x = \n" + "(" * 5000 + "d.x" + " + d.y)" * 5000 + ";", r":7: the program is nested too deeply here"),
        (
            "".join(f"for (bit<8> i{level} in 0 .. 1) {{" for level in range(30)) + "d.y = d.y + 1;" + "}" * 30,
            r":6: loops, .*, are nested too deeply here",
        ),
    ],
)
def test_what_is_nested_too_deeply(run_control: Any, text: str, message: str) -> None:
    with pytest.raises(P4Error, match=r"program\.p4" + message):
        run_control("bit<8> x; bit<8> y;", text, {})


@pytest.mark.parametrize("head", ["bit<8> i = 0; i <= 255; i = i + 1", "bit<32> i in 0 .. 70000"])
def test_loops_that_do_not_end_are_errors(run_control: Any, head: str) -> None:
    with pytest.raises(P4Error, match=r"program.p4:\d+: this loop runs more than 65536 times"):
        run_control("bit<8> x;", f"for ({head}) {{ d.x = 1; }}", {})
