"""Evaluation of compile-time constants on the checked tree."""

from collections.abc import Mapping
from typing import Any

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.calls import CallKind
from thc_p4_model.interfaces import P4Error

MAX_INTEGER_BITS = 2048
"""Of constants, as in p4c."""


class NotConstant(Exception):  # noqa: N818 - a result, not an error
    """The expression is not known at compile time."""


Environment = Mapping[s.Node, Any]
"""Values of constructor parameters and the like, by declaration."""

_EMPTY: Environment = {}


def evaluate(expr: s.Expr, environment: Environment = _EMPTY) -> Any:
    """The value: int, bool, str, or a tuple for lists and structs. Raises NotConstant; P4Error for wrong operands."""
    match expr:
        case s.IntLit():
            return _convert(expr.value, expr.type)
        case s.BoolLit() | s.StringLit():
            return expr.value
        case s.Name():
            return _name(expr, environment)
        case s.Member():
            return _member(expr, environment)
        case s.Cast():
            return cast(evaluate(expr.operand, environment), expr.operand.type, expr.type)
        case s.Unary():
            return _unary(expr, environment)
        case s.Binary():
            return _binary(expr, environment)
        case s.Ternary():
            chosen = expr.yes if evaluate(expr.condition, environment) else expr.no
            return evaluate(chosen, environment)
        case s.Slice():
            high, low = expr.bounds
            return (evaluate(expr.base, environment) >> low) & ((1 << (high - low + 1)) - 1)
        case s.ListExpr():
            return tuple(evaluate(item, environment) for item in expr.items)
        case s.StructExpr():
            return tuple(evaluate(value, environment) for _name, value in expr.fields)
        case s.Index():
            return evaluate(expr.base, environment)[evaluate(expr.index, environment)]
        case s.Call() if expr.target is not None and expr.target.kind is CallKind.BUILT_IN:
            return _size(expr)
    raise NotConstant


def try_evaluate(expr: s.Expr, environment: Environment = _EMPTY) -> Any:
    """The value, or None if it is not a constant."""
    try:
        return evaluate(expr, environment)
    except NotConstant:
        return None


def _name(expr: s.Name, environment: Environment) -> Any:
    decl = expr.decl
    if decl in environment:
        return environment[decl]
    if isinstance(decl, s.ConstDecl):
        return evaluate(decl.value, environment)
    raise NotConstant


def _member(expr: s.Member, environment: Environment) -> Any:
    if isinstance(expr.base, s.TypeExpr):
        named = expr.type
        if isinstance(named, t.EnumType):
            return named.members[expr.name]
        if named is t.ERROR:
            return expr.name
        raise NotConstant
    base_type = expr.base.type
    if isinstance(base_type, t.StackType) and expr.name == "size":
        return base_type.size
    if isinstance(base_type, t.RecordType):
        value = evaluate(expr.base, environment)
        if isinstance(value, tuple):
            return value[list(base_type.fields).index(expr.name)]
    raise NotConstant


def _size(expr: s.Call) -> int:
    target = expr.target
    measured = target.constructed or (target.base.type if target.base is not None else None)
    if measured is None or target.name not in SIZES:
        raise NotConstant
    return size_of(target.name, measured)


SIZES = ("minSizeInBits", "minSizeInBytes", "maxSizeInBits", "maxSizeInBytes")
"""Methods that tell a type's size."""


def size_of(method: str, measured: t.Type) -> int:
    """Result of one of the SIZES."""
    bits = _min_width(measured) if method.startswith("min") else t.width_of(measured)
    return bits if method.endswith("Bits") else (bits + 7) // 8


def _min_width(type_: t.Type) -> int:
    match t.strip(type_):
        case t.VarbitType():
            return 0
        case t.RecordType(keyword="header_union", fields=fields):
            return min((_min_width(field) for field in fields.values()), default=0)
        case t.RecordType(fields=fields):
            return sum(_min_width(field) for field in fields.values())
        case t.StackType(element, size):
            return size * _min_width(element)
    return t.width_of(type_)


def _convert(value: int, type_: t.Type | None) -> int:
    target = t.strip(type_) if type_ is not None else None
    return target.wrap(value) if isinstance(target, t.BitType) else value


def cast(value: Any, source: t.Type, target: t.Type) -> Any:
    """The value converted from one type to another."""
    source, target = t.strip(source), t.strip(target)
    if isinstance(target, t.EnumType) and target.base is not None:
        target = target.base
    if isinstance(target, t.BitType):
        return target.wrap(int(value))
    if target is t.BOOL:
        return bool(value)
    return value


def _unary(expr: s.Unary, environment: Environment) -> Any:
    value = evaluate(expr.operand, environment)
    match expr.op:
        case "!":
            return not value
        case "-":
            return _convert(-value, expr.type)
        case "~":
            return _convert(~value, expr.type)
    return value


def _binary(expr: s.Binary, environment: Environment) -> Any:
    left = evaluate(expr.left, environment)
    if expr.op == "&&":
        return left and evaluate(expr.right, environment)
    if expr.op == "||":
        return left or evaluate(expr.right, environment)
    right = evaluate(expr.right, environment)
    if expr.op in ("<<", ">>") and right < 0:
        raise P4Error(expr.location, f"shift by a negative amount, {right}")
    if expr.op == "<<" and right > MAX_INTEGER_BITS:
        width = getattr(t.strip(expr.type), "width", None)
        if width is None:
            raise P4Error(expr.location, f"shift by {right}: constants have at most {MAX_INTEGER_BITS} bits")
        right = min(right, width)
    if expr.op in ("/", "%") and right == 0:
        raise P4Error(expr.location, "division by zero")
    if expr.op in ("/", "%") and (left < 0 or right < 0):
        raise P4Error(expr.location, f"{expr.op} is not defined for negative numbers")
    return _apply(expr, left, right)


def _apply(expr: s.Binary, left: Any, right: Any) -> Any:
    match expr.op:
        case "==":
            return left == right
        case "!=":
            return left != right
        case "<":
            return left < right
        case ">":
            return left > right
        case "<=":
            return left <= right
        case ">=":
            return left >= right
        case "++":
            left_type, right_type = t.strip(expr.left.type), t.strip(expr.right.type)
            assert isinstance(left_type, t.BitType)
            assert isinstance(right_type, t.BitType)
            return _convert((left << right_type.width) | (right & right_type.mask), expr.type)
        case "|+|" | "|-|":
            result_type = t.strip(expr.type)
            assert isinstance(result_type, t.BitType)
            low, high = result_type.range
            return min(max(left + right if expr.op == "|+|" else left - right, low), high)
    result = _convert(arithmetic(expr.op, left, right), expr.type)
    if result.bit_length() > MAX_INTEGER_BITS:
        raise P4Error(expr.location, f"{expr.op} gives a constant of more than {MAX_INTEGER_BITS} bits")
    return result


def arithmetic(op: str, left: int, right: int) -> int:
    """Integer arithmetic without wrapping."""
    match op:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left // right
        case "%":
            return left % right
        case "&":
            return left & right
        case "|":
            return left | right
        case "^":
            return left ^ right
        case "<<":
            return left << right
        case ">>":
            return left >> right
    raise AssertionError(op)
