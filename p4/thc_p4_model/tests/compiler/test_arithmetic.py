"""Random expressions over bit<N> and int<N> against exact arithmetic in Python."""

from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FIELDS = {f"f{index}": width for index, width in enumerate((1, 3, 8, 16, 17, 32, 48, 64))}
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass(frozen=True)
class Number:
    """An expression of type bit<width> or int<width>, and its value."""

    text: str
    width: int
    signed: bool
    value: int

    @property
    def type(self) -> str:
        return f"{'int' if self.signed else 'bit'}<{self.width}>"


def wrapped(value: int, width: int, signed: bool) -> int:
    value %= 1 << width
    return value - (1 << width) if signed and value >> (width - 1) else value


def limited(value: int, width: int, signed: bool) -> int:
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)
    return min(max(value, low), high)


def number(text: str, width: int, signed: bool, value: int) -> Number:
    return Number(f"({text})", width, signed, wrapped(value, width, signed))


def same_type(like: Number, other: Number) -> Number:
    """`other` converted to the type of `like`, which takes up to two casts."""
    sized = number(
        f"({'int' if other.signed else 'bit'}<{like.width}>){other.text}", like.width, other.signed, other.value
    )
    return number(f"({like.type}){sized.text}", like.width, like.signed, sized.value)


@st.composite
def numbers(draw: st.DrawFn, values: dict[str, int], depth: int) -> Number:
    if depth == 0 or draw(st.booleans()):
        if draw(st.booleans()):
            field = draw(st.sampled_from(sorted(FIELDS)))
            return Number(f"d.{field}", FIELDS[field], signed=False, value=values[field])
        width = draw(st.integers(1, 40))
        signed = draw(st.booleans())
        value = draw(st.integers(0, (1 << (width - signed)) - 1))
        return Number(f"{width}{'s' if signed else 'w'}{value}", width, signed, value)
    left = draw(numbers(values, depth - 1))
    kind = draw(st.sampled_from(["unary", "binary", "shift", "slice", "concatenate", "cast", "choose"]))
    if kind == "unary":
        op = draw(st.sampled_from("-~"))
        return number(f"{op}{left.text}", left.width, left.signed, -left.value if op == "-" else ~left.value)
    if kind == "cast":
        width = draw(st.integers(1, 70))
        return number(f"({'int' if left.signed else 'bit'}<{width}>){left.text}", width, left.signed, left.value)
    if kind == "slice":
        low = draw(st.integers(0, left.width - 1))
        high = draw(st.integers(low, left.width - 1))
        return number(f"{left.text}[{high}:{low}]", high - low + 1, False, left.value >> low)
    right = draw(numbers(values, depth - 1))
    if kind == "concatenate":
        value = (left.value << right.width) | wrapped(right.value, right.width, signed=False)
        return number(f"{left.text} ++ {right.text}", left.width + right.width, left.signed, value)
    if kind == "shift":
        amount = right.value & 63
        text = f"((bit<{right.width}>){right.text})"
        if right.width > 6:
            text = f"({text} & 63)"
        else:
            amount &= (1 << right.width) - 1
        op = draw(st.sampled_from(["<<", ">>"]))
        value = left.value << amount if op == "<<" else left.value >> amount
        return number(f"{left.text} {op} {text}", left.width, left.signed, value)
    right = same_type(left, right)
    if kind == "choose":
        op = draw(st.sampled_from(["<", "<=", "==", "!=", ">", ">="]))
        holds = {
            "<": left.value < right.value,
            "<=": left.value <= right.value,
            "==": left.value == right.value,
            "!=": left.value != right.value,
            ">": left.value > right.value,
            ">=": left.value >= right.value,
        }[op]
        text = f"{left.text} {op} {right.text} ? {left.text} : {right.text}"
        return number(text, left.width, left.signed, left.value if holds else right.value)
    op = draw(st.sampled_from(["+", "-", "*", "&", "|", "^", "|+|", "|-|"]))
    a, b = left.value, right.value
    value = {
        "+": a + b,
        "-": a - b,
        "*": a * b,
        "&": a & b,
        "|": a | b,
        "^": a ^ b,
        "|+|": limited(a + b, left.width, left.signed),
        "|-|": limited(a - b, left.width, left.signed),
    }[op]
    return number(f"{left.text} {op} {right.text}", left.width, left.signed, value)


@SETTINGS
@given(data=st.data())
def test_expressions(run_control: Any, data: st.DataObject) -> None:
    values = {name: data.draw(st.integers(0, (1 << width) - 1), name) for name, width in FIELDS.items()}
    expressions = [data.draw(numbers(values, 4), f"expression {index}") for index in range(4)]
    fields = "".join(f"bit<{width}> {name}; " for name, width in FIELDS.items())
    fields += "".join(f"{expression.type} r{index}; " for index, expression in enumerate(expressions))
    code = "".join(f"d.r{index} = {expression.text};\n" for index, expression in enumerate(expressions))
    result = run_control(fields, code, values)
    assert [result[f"r{index}"] for index in range(4)] == [expression.value for expression in expressions]


@SETTINGS
@given(
    value=st.integers(0, 2**32 - 1),
    part=st.integers(0, 2**32 - 1),
    bounds=st.tuples(st.integers(0, 31), st.integers(0, 31)).map(sorted),
)
def test_slices_are_written_in_place(run_control: Any, value: int, part: int, bounds: list[int]) -> None:
    low, high = bounds
    width = high - low + 1
    result = run_control(
        "bit<32> x; int<32> y; bit<32> part;",
        f"d.x[{high}:{low}] = d.part[{width - 1}:0]; d.y[{high}:{low}] = d.part[{width - 1}:0];",
        {"x": value, "y": wrapped(value, 32, signed=True), "part": part},
    )
    expected = (value & ~(((1 << width) - 1) << low)) | ((part & ((1 << width) - 1)) << low)
    assert (result["x"], result["y"]) == (expected, wrapped(expected, 32, signed=True))


def test_shifts_by_more_than_the_width(run_control: Any) -> None:
    result = run_control(
        "bit<8> x; int<8> y; bit<64> n; bit<8> a; bit<8> b; int<8> c;",
        "d.a = d.x << d.n; d.b = d.x >> d.n; d.c = d.y >> d.n;",
        {"x": 255, "y": -3, "n": 1 << 60},
    )
    assert (result["a"], result["b"], result["c"]) == (0, 0, -1)


def test_constants_have_any_precision(run_control: Any) -> None:
    result = run_control(
        "bit<8> x; bit<32> y; int<8> z;",
        "d.x = (bit<8>)((BIG >> 100) + 3 * 2 - 7 / 2 % 2); d.y = WIDTH * 2; d.z = -(1 << 7);",
        {},
        top="const int BIG = 1 << 100; const bit<32> WIDTH = 32w0x8000_0001;",
    )
    assert result == {"x": 6, "y": 2, "z": -128}
