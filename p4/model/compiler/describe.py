"""Expressions as text, for the names of keys that have no @name."""

from __future__ import annotations

from p4.model.compiler import syntax as s
from p4.model.compiler.constants import NotConstant, evaluate


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
        return "key"
