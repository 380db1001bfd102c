from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thc_p4_model.interfaces import P4Error

SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
ENDING = "control C(); package Top(C c); control Test() { apply { } } Top(Test()) main;"

fields = st.lists(
    st.tuples(st.integers(1, 70), st.booleans()).filter(lambda field: field[0] > 1 or not field[1]),
    min_size=1,
    max_size=9,
)
words = st.lists(st.tuples(st.sampled_from([8, 16, 32, 64]), st.booleans()), min_size=1, max_size=9)


@SETTINGS
@given(layout=st.one_of(fields, words), data=st.data())
def test_headers_are_their_bits(compile_source: Callable[..., Any], layout: Any, data: st.DataObject) -> None:
    declared = "".join(f"{'int' if signed else 'bit'}<{width}> f{n}; " for n, (width, signed) in enumerate(layout))
    total = sum(width for width, _signed in layout)
    program = compile_source(f"header h_t {{ {declared} bit<{-total % 8 or 8}> pad; }} {ENDING}")
    info = program.types["h_t"]
    header = info.new()
    bits = data.draw(st.integers(0, (1 << info.width) - 1))
    raw = bits.to_bytes(info.width // 8, "big")
    header.load(b"\xff" + raw, 1)
    below = info.width
    for number, (width, signed) in enumerate(layout):
        below -= width
        part = (bits >> below) & ((1 << width) - 1)
        assert getattr(header, f"f{number}") == (part - (1 << width) if signed and part >> (width - 1) else part)
    assert (header.valid, header.pack(), header.dump(), info.pack(info.unpack(bits))) == (True, bits, raw, bits)
    copy = header.copy()
    header.set_invalid()
    assert (copy.valid, copy.pack(), header.valid, header.pack(), copy == header) == (True, bits, False, 0, False)


def test_type_infos(compile_source: Callable[..., Any]) -> None:
    program = compile_source(
        """
        enum bit<4> Code { ONE = 1, TWO = 2 }
        enum Color { RED, GREEN }
        @layout("x") header h_t { @hidden bit<4> a; Code code; bool is; bit<7> class; }
        struct box_t<T> { T value; }
        struct all_t { h_t h; h_t[2] stack; error e; Color color; tuple<bit<3>, bool> pair; box_t<bit<5>> box; }
        const bit<8> LIMIT = 3 + 4;
        """
        + ENDING
    )
    header, everything = program.types["h_t"], program.types["all_t"]
    assert (header.width, header.annotations, header.field_annotations) == (
        16,
        {"layout": ("x",)},
        {"a": {"hidden": ()}},
    )
    value = header.unpack(0b1010_0010_1_0000011)
    assert (value.a, value.code, value.is_, value.class_) == (10, 2, True, 3)
    made = everything.new()
    assert (made.e, made.color, made.pair, made.box.value, len(made.stack), made.h.valid) == (
        "NoError",
        "RED",
        (0, False),
        0,
        2,
        False,
    )
    assert dict(everything.fields)["stack"].element is header
    assert (dict(program.types["Code"].members), program.constants["LIMIT"]) == ({"ONE": 1, "TWO": 2}, 7)
    pair = dict(everything.fields)["pair"]
    assert (pair.pack((5, True)), pair.unpack(0b1011)) == (0b1011, (5, True))


@pytest.mark.parametrize(
    "names",
    [("self", "self_", "self__"), ("copy", "valid", "valid_"), ("__x", "__x_", "__init__"), ("other", "value", "data")],
)
def test_fields_may_have_names_that_python_uses(instantiate: Callable[..., Any], names: tuple[str, ...]) -> None:
    fields = "".join(f"bit<8> {name}; " for name in names)
    members = "".join(f"one_h {name}; " for name in names)
    numbers = ", ".join(str(number) for number in range(1, len(names) + 1))
    moves = "".join(f"s.plain.{name} = s.header_.{name}; " for name in names)
    block = instantiate(
        f"""
        header one_h {{ bit<8> x; }}
        header all_h {{ {fields} }}
        struct plain_t {{ {fields} }}
        header_union any_u {{ {members} }}
        struct all_t {{ all_h header_; plain_t plain; any_u union; }}
        control C(inout all_t s);
        package Top(C c);
        control Test(inout all_t s) {{
            apply {{
                s.header_ = {{ {numbers} }}; {moves}
                s.union.{names[0]}.setValid(); s.union.{names[1]}.setValid();
            }}
        }}
        Top(Test()) main;
        """
    ).main.args["c"]
    value = block.params[0].type.new()
    block.apply(value)
    assert value.copy().header_.dump() == bytes(range(1, len(names) + 1))
    assert value.plain.pack() == value.header_.pack()
    assert [getattr(value.union, member).valid for member in value.union.FIELDS] == [False, True, False]
    assert [name for name, _type in dict(block.params[0].type.fields)["plain"].fields] == list(names)


def test_the_generated_source_is_python(compile_source: Callable[..., Any]) -> None:
    source = compile_source(f"header h_t {{ bit<8> a; }} {ENDING}").source
    compile(source, "generated", "exec")
    assert "class T_h_t(Header)" in source


def test_the_architecture_asked_for(compile_source: Callable[..., Any]) -> None:
    with pytest.raises(Exception, match=r"does not include v1model\.p4"):
        compile_source(ENDING, architecture="v1model")
    assert compile_source(ENDING, architecture="core").errors[0] == "NoError"


@pytest.mark.parametrize(
    "apply",
    [
        "d.p = 5;",
        "port_t v = N; d.p = v;",
        "set(5); d.p = passed;",
        "pair_t v = {5, 1}; d.p = v.p;",
        "d.p = d.x == 0 ? 5 : d.p;",
        "if (d.p == 0 && 0 == d.p && d.p != 7) { d.p = larger(4, d.p) == 0 ? (port_t)5 : 6; }",
        "switch (d.p) { 0: { d.p = 5; } default: { d.p = 6; } }",
        "t.apply();",
        "const port_t c = 5; d.p = c;",
    ],
)
def test_integers_are_values_of_new_types(run_control: Callable[..., Any], apply: str) -> None:
    top = """type bit<9> port_t; struct pair_t { port_t p; bit<8> x; } const int N = 5; match_kind { range }
        T larger<T>(in T a, in T b) { return b; }"""
    before = """port_t passed; action set(in port_t p) { passed = p; } action put(port_t p) { d.p = p; }
        table t { key = { d.p: ternary; d.q: range; } actions = { put; } default_action = put(6);
                  const entries = { (0 &&& 0x1ff, 0..3): put(5); } }"""
    assert run_control("port_t p; port_t q; bit<8> x;", apply, {}, before, top)["p"] == 5


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        ("d.p = 512;", "512 does not fit port_t"),
        ("d.p = 9w5;", "must be port_t, not bit<9>"),
        ("d.p = d.p + 1;", "needs two"),
    ],
)
def test_new_types_take_nothing_else(run_control: Callable[..., Any], apply: str, message: str) -> None:
    with pytest.raises(P4Error, match=message):
        run_control("port_t p;", apply, {}, "", "type bit<9> port_t;")
