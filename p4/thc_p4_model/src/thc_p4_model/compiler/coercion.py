"""Conversions between types: which the language makes by itself, and which a cast may ask for."""

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.check_types import fail
from thc_p4_model.compiler.constants import try_evaluate
from thc_p4_model.interfaces import Location, P4Error


def literal(location: Location, value: int, bits: t.BitType, type_: t.Type | None = None) -> s.IntLit:
    """An integer literal of a type: `type_` itself if it is a new type with these bits."""
    return s.IntLit(location, value, bits.width, bits.signed, type=type_ or bits)


def convert(expr: s.Expr, target: t.Type, what: str) -> s.Expr:
    """The checked expression as a value of `target`; `what` names it in the P4Error if that is impossible."""
    source = expr.type
    if source == target or target is t.DONT_CARE or isinstance(target, t.TypeVar):
        return expr
    bits = t.strip(target)
    if source is t.INTEGER and isinstance(bits, t.BitType):
        return _sized(expr, target, bits, what)
    if isinstance(source, t.TupleType) and isinstance(expr, (s.ListExpr, s.StructExpr, s.Ternary)):
        return _aggregate(expr, target, what)
    if isinstance(source, t.TupleType) and isinstance(target, t.TupleType) and source.items == target.items:
        return expr
    if source is t.DEFAULT:
        expr.type = target
        return expr
    if source is t.INVALID_HEADER and isinstance(target, t.RecordType) and target.keyword != "struct":
        expr.type = target
        return expr
    if isinstance(source, t.EnumType) and source.base is not None and target == source.base:
        return s.Cast(expr.location, None, expr, type=target)
    if isinstance(source, t.EnumType) and source.base is not None and target is t.INTEGER:
        return expr
    if isinstance(source, t.ExternType) and isinstance(target, t.ExternType) and _same_extern(source, target):
        return expr
    raise P4Error(expr.location, f"{what} must be {target}, not {source}")


def _sized(expr: s.Expr, target: t.Type, bits: t.BitType, what: str) -> s.Expr:
    value = try_evaluate(expr)
    if value is None:
        return s.Cast(expr.location, None, expr, type=target)
    lowest = -(1 << (bits.width - 1)) if bits.width else 0
    if not lowest <= value <= bits.range[1]:
        fail(expr, f"{what}: {value} does not fit {target}")
    return literal(expr.location, bits.wrap(value), bits, target)


def _same_extern(source: t.ExternType, target: t.ExternType) -> bool:
    loose = (t.DONT_CARE,)
    return source.decl is target.decl and all(
        one == other or one in loose or other in loose or isinstance(other, t.TypeVar)
        for one, other in zip(source.args, target.args, strict=True)
    )


def _aggregate(expr: s.Expr, target: t.Type, what: str) -> s.Expr:
    """A list expression or struct initialiser as a struct, header, stack or tuple."""
    if isinstance(expr, s.Ternary):
        expr.yes, expr.no = convert(expr.yes, target, what), convert(expr.no, target, what)
    elif isinstance(expr, s.StructExpr):
        _named_fields(expr, target, what)
    elif isinstance(expr, s.ListExpr):
        types = _item_types(target)
        if types is None:
            fail(expr, f"{what} must be {target}, not a list")
        if expr.items and expr.items[-1].type is t.DEFAULT:
            rest = len(types) - len(expr.items) + 1
            expr.items[-1:] = [s.DefaultValue(expr.location, type=t.DEFAULT) for _ in range(rest)]
        if len(types) != len(expr.items):
            fail(expr, f"{what}: {target} takes {len(types)} values, not {len(expr.items)}")
        expr.items = [convert(item, type_, what) for item, type_ in zip(expr.items, types, strict=True)]
    expr.type = target
    return expr


def _item_types(target: t.Type) -> tuple[t.Type, ...] | None:
    match target:
        case t.RecordType(keyword="header" | "struct", fields=fields):
            return tuple(fields.values())
        case t.TupleType(items):
            return items
        case t.StackType(element, size):
            return (element,) * size
    return None


def _named_fields(expr: s.StructExpr, target: t.Type, what: str) -> None:
    """Put the named values in the order of the fields."""
    if not isinstance(target, t.RecordType) or target.keyword == "header_union":
        fail(expr, f"{what} must be {target}, not a struct")
    given = dict(expr.fields)
    rest = given.pop("...", None)
    for name, value in given.items():
        if name not in target.fields:
            fail(value, f"{target} has no field {name}")
    ordered: list[tuple[str, s.Expr]] = []
    for name, type_ in target.fields.items():
        if name in given:
            ordered.append((name, convert(given[name], type_, name)))
        elif rest is not None:
            ordered.append((name, s.DefaultValue(expr.location, type=type_)))
        else:
            fail(expr, f"{what}: field {name} of {target} is not given")
    expr.fields = ordered


def explicit_cast_allowed(source: t.Type, target: t.Type) -> bool:
    """Whether `(target) source` is a cast of the language."""
    if source == target:
        return True
    if isinstance(source, t.NewType):
        return explicit_cast_allowed(source.base, target)
    if isinstance(target, t.NewType):
        return explicit_cast_allowed(source, target.base)
    if isinstance(source, t.EnumType) and source.base is not None:
        return explicit_cast_allowed(source.base, target)
    if isinstance(target, t.EnumType) and target.base is not None:
        return explicit_cast_allowed(source, target.base)
    match source, target:
        case t.BitType(), t.BitType():
            return source.signed == target.signed or source.width == target.width
        case t.SimpleType("int"), t.BitType() | t.SimpleType("bool"):
            return True
        case t.SimpleType("bool"), t.BitType(1, False):
            return True
        case t.BitType(1, False), t.SimpleType("bool"):
            return True
        case t.BitType(), t.SimpleType("int"):
            return True
    return isinstance(source, t.TypeVar) or isinstance(target, t.TypeVar)
