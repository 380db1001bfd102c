"""Types and expressions as written."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thc_p4_model.compiler.nodes.root import Node

if TYPE_CHECKING:
    from thc_p4_model.compiler.calls import CallTarget
    from thc_p4_model.compiler.nodes.statements import Assign
    from thc_p4_model.compiler.types import Type

# Types as written.


@dataclass(eq=False)
class TypeNode(Node):
    """A type as written."""


@dataclass(eq=False)
class BitsTypeNode(TypeNode):
    """`bit<width>`, `int<width>`, `varbit<width>`; without width `bit` and `int`."""

    keyword: str
    width: "Expr | None"


@dataclass(eq=False)
class SimpleTypeNode(TypeNode):
    """`bool`, `error`, `string`, `void`, `match_kind` or `_`."""

    keyword: str


@dataclass(eq=False)
class NamedTypeNode(TypeNode):
    """`name<args>`."""

    name: str
    args: list[TypeNode]


@dataclass(eq=False)
class TupleTypeNode(TypeNode):
    """`tuple<items>`."""

    items: list[TypeNode]


@dataclass(eq=False)
class StackTypeNode(TypeNode):
    """`base[size]`."""

    base: TypeNode
    size: "Expr"


# Expressions.


@dataclass(eq=False)
class Expr(Node):
    """An expression; `type` is filled in by the checker."""

    type: "Type" = field(default=None, kw_only=True, repr=False)  # type: ignore[assignment]


@dataclass(eq=False)
class IntLit(Expr):
    """An integer; `width` is None without a width prefix."""

    value: int
    width: int | None = None
    signed: bool = False


@dataclass(eq=False)
class BoolLit(Expr):
    """`true` or `false`."""

    value: bool


@dataclass(eq=False)
class StringLit(Expr):
    """A string literal."""

    value: str


@dataclass(eq=False)
class Name(Expr):
    """A name in an expression; `decl` is its declaration."""

    name: str
    absolute: bool = False
    decl: Any = field(default=None, repr=False)


@dataclass(eq=False)
class TypeExpr(Expr):
    """A type where an expression stands: `Type.member`, `Type(args)`."""

    node: TypeNode


@dataclass(eq=False)
class Member(Expr):
    """`base.name`."""

    base: Expr
    name: str


@dataclass(eq=False)
class Index(Expr):
    """`base[index]`."""

    base: Expr
    index: Expr


@dataclass(eq=False)
class Slice(Expr):
    """`base[high:low]`."""

    base: Expr
    high: Expr
    low: Expr
    bounds: tuple[int, int] = (0, 0)


@dataclass(eq=False)
class Unary(Expr):
    """`op operand`."""

    op: str
    operand: Expr


@dataclass(eq=False)
class Binary(Expr):
    """`left op right`."""

    op: str
    left: Expr
    right: Expr


@dataclass(eq=False)
class Ternary(Expr):
    """`condition ? yes : no`."""

    condition: Expr
    yes: Expr
    no: Expr


@dataclass(eq=False)
class Cast(Expr):
    """`(type) operand`; `node` is None for casts the checker puts in."""

    node: TypeNode | None
    operand: Expr


@dataclass(eq=False)
class Argument(Node):
    """An argument; `value` is None for `_`."""

    name: str | None
    value: Expr | None


@dataclass(eq=False)
class Call(Expr):
    """`callee<type_args>(args)`; the checker fills in the target."""

    callee: Expr
    type_args: list[TypeNode]
    args: list[Argument]
    target: "CallTarget" = field(default=None, repr=False)  # type: ignore[assignment]


@dataclass(eq=False)
class ListExpr(Expr):
    """`{a, b}`."""

    items: list[Expr]


@dataclass(eq=False)
class StructExpr(Expr):
    """`{name = a, ...}`."""

    fields: list[tuple[str, Expr]]


@dataclass(eq=False)
class InvalidHeader(Expr):
    """`{#}`."""


@dataclass(eq=False)
class DefaultValue(Expr):
    """`...`, the zero value."""


@dataclass(eq=False)
class Current(Expr):
    """The present value of the target of an assigning operator such as `+=`."""

    assignment: "Assign"


@dataclass(eq=False)
class Mask(Expr):
    """`value &&& mask` in a keyset."""

    value: Expr
    mask: Expr


@dataclass(eq=False)
class Range(Expr):
    """`low .. high` in a keyset."""

    low: Expr
    high: Expr


@dataclass(eq=False)
class DontCare(Expr):
    """`_` or `default` in a keyset."""
