"""Headers used as metadata keep written values if nothing makes them valid; all others lose writes while invalid."""

from collections.abc import Callable
from typing import Any

import pytest

TOP = """
header tmp_h { bit<16> a; bit<8> b; bit<8> c; }
header_union both_h { tmp_h one; tmp_h two; }
struct meta_t { tmp_h tmp; tmp_h other; tmp_h[2] stack; both_h both; }
extern void fill<T>(out T value);
void add(inout tmp_h h, in bit<16> n) { h.a = h.a + n; }
void validate(inout tmp_h h) { h.setValid(); }
void fill_it<T>(inout T value) { fill<T>(value); }
tmp_h made(in bit<16> n) { tmp_h h = {n, 1, 2}; return h; }
control Sub(inout tmp_h h) { apply { h.a = 9; } }
"""
KEPT = {
    "field": "m.tmp.a = d.x; d.y = m.tmp.a;",
    "slice": "m.tmp.a[7:0] = 8w0x34; m.tmp.a[15:8] = 8w0x12; d.y = m.tmp.a;",
    "variable": "tmp_h v; v.a = d.x; d.y = v.a;",
    "field of a stack's element": "m.stack[1].a = d.x; d.y = m.stack[1].a;",
    "argument": "m.tmp.a = 0x1233; add(m.tmp, 1); d.y = m.tmp.a;",
    "copy": "m.tmp.a = d.x; m.other = m.tmp; tmp_h v = m.other; d.y = v.a;",
    "action": "m.tmp.a = 0x1233; increase(); d.y = m.tmp.a;",
    "control": "sub.apply(m.tmp); d.y = m.tmp.a + 0x122b;",
    "another field becomes valid": "m.other.setValid(); m.tmp.a = d.x; d.y = m.tmp.a;",
    "field of a member of a union": "m.both.one.a = d.x; d.y = m.both.one.a;",
    "copy of a struct": "m.tmp.a = d.x; meta_t n = m; d.y = n.tmp.a;",
}
DROPPED = {
    "setValid": "m.tmp.setValid();",
    "setValid of an argument": "validate(m.tmp);",
    "setValid of a copy": "m.other = m.tmp; m.other.setValid();",
    "a list": "m.tmp = {1, 2, 3};",
    "a list in a struct": "m = {{1, 2, 3}, ...};",
    "a choice": "m.tmp = d.x == 0 ? made(3) : m.other;",
    "result": "m.tmp = made(3);",
    "an extern": "fill<tmp_h>(m.tmp);",
    "an extern that fills a struct": "fill<meta_t>(m);",
    "an extern behind a generic function": "fill_it<tmp_h>(m.tmp);",
    "an extern behind a generic function, with a struct": "fill_it<meta_t>(m);",
}
DECLARATIONS = "meta_t m; Sub() sub; action increase() { m.tmp.a = m.tmp.a + 1; }"


@pytest.mark.parametrize("case", KEPT)
def test_headers_that_are_never_valid_keep_what_is_written(run_control: Callable[..., Any], case: str) -> None:
    got = run_control(
        "bit<16> x; bit<16> y; bool z;", KEPT[case] + "d.z = m.tmp.isValid();", {"x": 0x1234}, DECLARATIONS, TOP
    )
    assert (got["y"], got["z"]) == (0x1234, False)


@pytest.mark.parametrize("case", DROPPED)
def test_other_headers_lose_writes_while_they_are_invalid(run_control: Callable[..., Any], case: str) -> None:
    apply = f"m.tmp.a = d.x; d.y = m.tmp.a; if (d.x == 0) {{ {DROPPED[case]} }}"
    externs = {"fill": lambda _call: lambda _value: None}
    got = run_control("bit<16> x; bit<16> y;", apply, {"x": 0x1234}, DECLARATIONS, TOP, externs)
    assert got["y"] == 0


def test_headers_that_a_parser_extracts_lose_writes_while_they_are_invalid(compile_source: Callable[..., Any]) -> None:
    text = """
    header h_t {{ bit<16> a; }}
    struct h_s {{ h_t h; h_t unused; }}
    parser P(packet_in p, out {0} h); control C(inout {0} h); package Top(P p, C c);
    parser TestP(packet_in p, out {0} h) {{ state start {{ p.extract(h{1}); transition accept; }} }}
    control TestC(inout {0} h) {{ apply {{ h{1}.a = 1; }} }}
    Top(TestP(), TestC()) main;
    """
    for type_, member in (("h_t", ""), ("h_s", ".h")):
        assert ".valid: " in compile_source(text.format(type_, member)).source.split("def TestC")[-1]
