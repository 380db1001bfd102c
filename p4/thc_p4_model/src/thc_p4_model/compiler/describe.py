"""Expressions as text, for the names of keys that have no @name."""

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler.constants import NotConstant, evaluate


def is_simple_key(expr: s.Expr) -> bool:
    """Whether the expression has a name of its own: a field, a part of one, or isValid()."""
    match expr:
        case s.Name():
            return True
        case s.Member(base=base) | s.Slice(base=base) | s.Index(base=base):
            return is_simple_key(base)
        case s.Call(callee=s.Member(base=base, name="isValid")):
            return is_simple_key(base)
        case s.Binary(op="&", left=left, right=s.IntLit()):
            return is_simple_key(left)
        case s.Cast(node=None, operand=operand):
            return is_simple_key(operand)
    return False


def same_text(one: s.Expr, other: s.Expr) -> bool:
    """Whether two expressions, of which one may be unchecked yet, name the same thing."""
    return source_text(one) == source_text(other)


def source_text(expr: s.Expr) -> str:
    """The expression as p4c names it: `hdr.ipv4.dst`, `hdr.ipv4.$valid$`, `meta.x[3:0]`."""
    match expr:
        case s.Name(name=name):
            return name
        case s.Member(base=base, name=name):
            return f"{source_text(base)}.{name}"
        case s.Slice(base=base, bounds=(high, low)):
            return f"{source_text(base)}[{high}:{low}]"
        case s.Index(base=base, index=index):
            return f"{source_text(base)}[{source_text(index)}]"
        case s.Call(callee=s.Member(base=base, name="isValid")):
            return f"{source_text(base)}.$valid$"
        case s.Cast(operand=operand):
            return source_text(operand)
        case s.Binary(op=op, left=left, right=right):
            return f"{source_text(left)} {op} {source_text(right)}"
    try:
        return str(evaluate(expr))
    except NotConstant:
        return "expression"
