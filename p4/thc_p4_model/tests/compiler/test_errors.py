"""Mistakes a P4 compiler must find. `#` marks the line the error must name."""

from collections.abc import Callable
from typing import Any

import pytest

from thc_p4_model.interfaces import P4Error

BEFORE = """
header h_t { bit<8> a; bit<16> b; }
struct s_t { h_t h; bit<8> x; bit<16> y; int<8> i; bool z; }
enum Color { RED, GREEN }
extern Box<T> { Box(bit<32> n); T get(in T v); void put(out T v); abstract void act(inout T v); }
extern Plain { Plain(bit<32> n); void go(in bit<8> a, @optional in bit<8> b); }
extern void twice(in bit<8> a);
extern void twice(in bit<8> a, in bit<8> b);
parser P(packet_in p, out s_t s);
control C(inout s_t s);
package Top(P p, C c);
"""
PARSER = "parser TestP(packet_in p, out s_t s) { state start { transition accept; } }\n"
BOX = "Box<bit<8>>(3) b = { void act(inout bit<8> v) { } };"
OWNER = """
control Nothing();
control Empty() { apply { } }
extern Owner { Owner(bit<8> n); Owner(Nothing c, bit<8> n); void take(Nothing c); void any<T>(in T v); }
"""
AFTER = "\nTop(TestP(), TestC()) main;\n"


def control(apply: str, declarations: str = "") -> str:
    return f"{PARSER}control TestC(inout s_t s) {{\n{declarations}\napply {{\n{apply}\n}} }}{AFTER}"


def action(body: str) -> str:
    return control("a(1);", f"action a(bit<8> v) {{\n{body}\n}}")


def table(properties: str, extra: str = "") -> str:
    return control(
        "", f"action a(bit<8> v) {{ }} action b(inout bit<8> w, bit<8> v) {{ }}\n{extra}\ntable t {{\n{properties}\n}}"
    )


def parser(states: str) -> str:
    return f"parser TestP(packet_in p, out s_t s) {{\n{states}\n}}\ncontrol TestC(inout s_t s) {{ apply {{ }} }}{AFTER}"


CASES = {
    "syntax": (control("s.x = ;  #"), "syntax error at ';'"),
    "behind a string of several lines": (
        control("s.x = ;  #", '@note("\n  // one\n  /* two\n") action a() { }'),
        "syntax error at ';'",
    ),
    "character": (control("s.x = 3 $ 4;  #"), "unexpected character"),
    "signed index": (control("h_t[2] t; t[s.i].a = 1;  #"), "index must be unsigned"),
    "negative index": (control("h_t[2] t; t[-1].a = 1;  #"), "index -1 is outside"),
    "overlapping scalar argument of a function": (
        "void both(out bit<8> a, inout h_t h) { a = 1; h.a = 2; }\n" + control("both(s.h.a, s.h);  #"),
        "arguments h and a overlap",
    ),
    "long decimal number": (control(f"s.y = {'9' * 5000};  #"), "a number of more than 2048 bits"),
    "large width": (control("s.y = 99999999999w1;  #"), "a number of more than 2048 bits"),
    "huge shift": (control("s.y = 1985245330 << 903012108;  #"), "shift by 903012108"),
    "huge product": (control("s.y = (1 << 2000) * (1 << 2000);  #"), r"\* gives a constant of more than 2048 bits"),
    "unknown name": (control("s.x = nothing;  #"), "unknown name nothing"),
    "unknown type": (control("", "nothing_t v;  #"), "syntax error|unknown type"),
    "unknown field": (control("s.h.c = 1;  #"), "h_t has no field c"),
    "unknown error": (parser("state start { verify(s.z, error.Bad); transition accept; }  #"), "unknown error Bad"),
    "widths": (control("s.x = s.y;  #"), "must be bit<8>, not bit<16>"),
    "widths in operators": (control("s.x = s.x + s.y;  #"), "one type, not bit<8> and bit<16>"),
    "signs": (control("s.i = s.x;  #"), "must be int<8>, not bit<8>"),
    "constants that do not fit": (control("s.x = 256;  #"), "256 does not fit bit<8>"),
    "literals that do not fit": (control("s.x = 8w256;  #"), "256 does not fit bit<8>"),
    "casts": (control("s.i = (int<8>)s.y;  #"), "cannot cast bit<16> to int<8>"),
    "conditions": (control("if (s.x) { }  #"), "must be bool, not bit<8>"),
    "comparison": (control("s.z = s.h == s.x;  #"), "must be|cannot be compared"),
    "slices": (control("s.x[8:1] = 0;  #"), r"\[8:1\] is no slice"),
    "concatenation": (control("s.y = s.x ++ 1;  #"), "operands with widths"),
    "shift": (control("s.x = s.x << s.i;  #"), "must be unsigned"),
    "division by zero": (control("s.x = s.x / 0;  #"), "division by zero"),
    "division by a variable": (control("s.x = s.x / s.x;  #"), "not supported"),
    "writing constants": (control("N = 4;  #", "const bit<8> N = 3;"), "N is a constant"),
    "writing in parameters": (control("", "action a(in bit<8> v) {\nv = 1;  #\n}"), "v is an in parameter"),
    "writing action data": (action("v = 1;  #"), "v is a parameter without direction"),
    "out arguments": (control("b.put(s.x + 1);  #", BOX), "out, but"),
    "argument types": (control("s.x = b.get(s.y);  #", BOX), "must be bit<8>, not bit<16>"),
    "argument count": (control("b.get();  #", BOX), "takes 1 arguments, not 0"),
    "optional arguments": (control("p.go();  #", "Plain(1) p;"), "takes at least 1 arguments"),
    "overloads": (control("twice(1, 2, 3);  #"), "takes 1 or 2 arguments, not 3"),
    "named arguments": (control("b.get(w = 3);  #", BOX), "no parameter w"),
    "methods": (control("b.take();  #", BOX), "Box has no method take"),
    "abstract methods": (control("", "Box<bit<8>>(3) b;  #"), "b must implement act"),
    "abstract parameters": (
        control("", "Box<bit<8>>(3) b = {\nvoid act(inout bit<4> v) { }  #\n};"),
        "must be inout bit<8>",
    ),
    "duplicate variables": (control("bit<8> v;\nbit<8> v;  #"), "v is already declared"),
    "duplicate fields": ("struct t_t {\nbit<8> a;\nbit<8> a;  #\n}" + control(""), "two fields a"),
    "duplicate states": (
        parser("state start { transition accept; }\nstate start { transition accept; }  #"),
        "already declared",
    ),
    "unknown states": (parser("state start { transition away; }  #"), "unknown state away"),
    "no start": (parser("state go { transition accept; }"), "no state start"),
    "select values": (parser("state start { transition select(s.x) {\n(1, 2): accept;  #\n} }"), "2 values for 1 keys"),
    "action names": (control("", 'action a() { }\n@name("a") action c() { }  #'), "control-plane name TestC.a too"),
    "extract": (parser("state start { p.extract(s.x); transition accept; }  #"), "extract needs a header"),
    "tables in actions": (
        control("", "table t { actions = { NoAction; } } action a() {\nt.apply();  #\n}"),
        "can only be applied",
    ),
    "exit in functions": ("void f() {\nexit;  #\n}" + control(""), "exit cannot stand in a function"),
    "functions that do not return": (
        "bit<8> f(in bit<8> v) {  #\nif (v == 1) { return 1; }\n}" + control(""),
        "on every path",
    ),
    "returned types": ("bit<8> f() {\nreturn 16w1;  #\n}" + control(""), "must be bit<8>, not bit<16>"),
    "headers of headers": ("header g_t {\nh_t h;  #\n}" + control(""), "a header cannot contain h_t"),
    "control as an extern's constructor argument": (
        OWNER + control("", "Empty() empty;\nOwner(empty, 1) owner;  #"),
        "argument c of Owner is the control Empty: externs take",
    ),
    "control as an extern's argument": (
        OWNER + control("owner.take(empty);  #", "Empty() empty; Owner(1) owner;"),
        "empty cannot be used as a value",
    ),
    "table as an extern's argument": (
        OWNER + control("owner.any(t);  #", "Owner(1) owner; table t { actions = { NoAction; } }"),
        "argument v of Owner.any must be a value, not table t",
    ),
    "result of apply as an extern's argument": (
        OWNER + control("owner.any(t.apply());  #", "Owner(1) owner; table t { actions = { NoAction; } }"),
        r"argument v of Owner.any must be a value, not result of t.apply\(\)",
    ),
    "priorities in const entries": (
        table("key = { s.x: ternary; }\nactions = { a; }\nconst entries = {\npriority = 1: 1: a(1);  #\n}"),
        "const list .* cannot have priorities",
    ),
    "priorities of exact keys": (
        table("key = { s.x: exact; }\nactions = { a; }\nentries = {\npriority = 1: 1: a(1);  #\n}"),
        "exact and lpm keys only",
    ),
    "first priority": (
        table("key = { s.x: ternary; }\nactions = { a; }\nentries = {\n1: a(1);  #\npriority = 9: 2: a(1);\n}"),
        "the first entry needs a priority",
    ),
    "priority below zero": (
        table("key = { s.x: ternary; }\nactions = { a; }\nentries = {\npriority = 0: 1: a(1);\n2: a(1);  #\n}"),
        "the priority of this entry is -1",
    ),
    "priority delta": (
        table("key = { s.x: ternary; }\nactions = { a; }\npriority_delta = 0;  #\nentries = { 1: a(1); }"),
        "priority_delta must be positive, not 0",
    ),
    "priority order": (
        table("key = { s.x: ternary; }\nactions = { a; }\nlargest_priority_wins = 1;  #\nentries = { 1: a(1); }"),
        "largest_priority_wins must be bool, not int",
    ),
    "match kinds": (table("key = {\ns.x: fuzzy;  #\n}\nactions = { a; }"), "unknown match kind fuzzy"),
    "table actions": (table("actions = {\nc;  #\n}"), "unknown action c"),
    "directed parameters": (table("actions = {\nb;  #\n}"), "needs 1 arguments here"),
    "default actions": (table("actions = { NoAction; }\ndefault_action = a(1);  #"), "not in the list"),
    "default arguments": (table("actions = { a; }\ndefault_action = a();  #"), "takes 1 arguments"),
    "entries": (
        table("key = { s.x: exact; }\nactions = { a; }\nconst entries = {\n(1, 2): a(1);  #\n}"),
        "2 values for 1",
    ),
    "entry widths": (
        table("key = { s.x: exact; }\nactions = { a; }\nconst entries = {\n300: a(1);  #\n}"),
        "does not fit",
    ),
    "prefixes": (
        table("key = { s.x: lpm; }\nactions = { a; }\nconst entries = {\n1 &&& 5: a(1);  #\n}"),
        "is no prefix",
    ),
    "switch labels": (
        control("switch (t.apply().action_run) {\nc: { }  #\n}", "table t { actions = { NoAction; } }"),
        "not an action",
    ),
    "package arguments": (
        f"{PARSER}control TestC(inout bit<8> s) {{  #\napply {{ }} }}{AFTER}",
        "must be s_t, not bit<8>",
    ),
    "package directions": (f"{PARSER}control TestC(in s_t s) {{  #\napply {{ }} }}{AFTER}", "must be inout"),
    "recursive names": ("typedef later_t now_t;  #\nstruct later_t { bit<8> a; }" + control(""), "syntax error"),
    "value sets": (
        parser("value_set<bit<8>>(4) v;  #\nstate start { transition accept; }"),
        "value_set is not supported",
    ),
    "nothing called main": (PARSER, "no package instance main"),
}


@pytest.mark.parametrize("case", CASES)
def test_mistakes(compile_source: Callable[..., Any], case: str) -> None:
    text, message = CASES[case]
    lines = (BEFORE + text).split("\n")
    marked = [number for number, line in enumerate(lines, 2) if line.endswith("#")]
    with pytest.raises(P4Error, match=message) as error:
        compile_source("\n".join(line.removesuffix("#") for line in lines))
    assert error.value.path.endswith("program.p4")
    if marked:
        assert [error.value.line] == marked


def test_errors_in_macros_name_the_line_of_the_call(compile_source: Callable[..., Any]) -> None:
    text = BEFORE + "#define SET(f, v) s.f = \\\n v;\n" + control("SET(x, 1)\nSET(y, s.x)  #")
    lines = text.split("\n")
    (line,) = (number for number, item in enumerate(lines, 2) if item.endswith("#"))
    with pytest.raises(P4Error, match=f"program.p4:{line}: the value assigned must be bit<16>"):
        compile_source("\n".join(item.removesuffix("#") for item in lines))


def test_errors_in_included_files_name_the_file(compile_source: Callable[..., Any], tmp_path: Any) -> None:
    (tmp_path / "types.p4").write_text("\n\nstruct bad_t { bit<0x10000000> a; }\n")
    with pytest.raises(P4Error, match=r"types.p4:3: a width must be a number"):
        compile_source('#include "types.p4"\n')


def test_the_same_text_without_the_mistake_compiles(compile_source: Callable[..., Any]) -> None:
    compile_source(BEFORE + control("s.x = 1;"))
