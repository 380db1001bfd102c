"""The syntax tree. Nodes know their location; the checker fills in types, declarations and call targets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from p4.model.interfaces import Location

if TYPE_CHECKING:
    from p4.model.compiler.calls import BoundArgument, CallTarget
    from p4.model.compiler.types import Type


@dataclass(eq=False)
class Node:
    """A node of the tree."""

    location: Location


@dataclass(eq=False)
class Annotation(Node):
    """`@name(args)`; args are literals, other tokens as text."""

    name: str
    args: tuple[Any, ...]


# Types as written.


@dataclass(eq=False)
class TypeNode(Node):
    """A type as written."""


@dataclass(eq=False)
class BitsTypeNode(TypeNode):
    """`bit<width>`, `int<width>`, `varbit<width>`; without width `bit` and `int`."""

    keyword: str
    width: Expr | None


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
    size: Expr


# Expressions.


@dataclass(eq=False)
class Expr(Node):
    """An expression; `type` is filled in by the checker."""

    type: Type = field(default=None, kw_only=True, repr=False)  # type: ignore[assignment]


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
    """A name in an expression; `decl` is what it means."""

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
    target: CallTarget = field(default=None, repr=False)  # type: ignore[assignment]


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

    assignment: Assign


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


# Statements.


@dataclass(eq=False)
class Stmt(Node):
    """A statement."""


@dataclass(eq=False)
class Assign(Stmt):
    """`target op value`, op `=` or an assigning operator."""

    target: Expr
    op: str
    value: Expr


@dataclass(eq=False)
class CallStmt(Stmt):
    """A call whose result is dropped."""

    call: Call


@dataclass(eq=False)
class Block(Stmt):
    """`{...}`."""

    statements: list[Stmt]


@dataclass(eq=False)
class If(Stmt):
    """`if`."""

    condition: Expr
    yes: Stmt
    no: Stmt | None


@dataclass(eq=False)
class Return(Stmt):
    """`return`."""

    value: Expr | None


@dataclass(eq=False)
class Exit(Stmt):
    """`exit`."""


@dataclass(eq=False)
class Break(Stmt):
    """`break`."""


@dataclass(eq=False)
class Continue(Stmt):
    """`continue`."""


@dataclass(eq=False)
class SwitchCase(Node):
    """`label: block`; label None is `default`; block None falls through."""

    label: Expr | None
    block: Block | None


@dataclass(eq=False)
class Switch(Stmt):
    """`switch`; `table` is set when it switches on the action a table ran."""

    subject: Expr
    cases: list[SwitchCase]
    table: TableDecl | None = None


@dataclass(eq=False)
class For(Stmt):
    """`for (init; condition; update) body`."""

    init: list[Stmt]
    condition: Expr
    update: list[Stmt]
    body: Stmt


@dataclass(eq=False)
class ForIn(Stmt):
    """`for (type name in low..high) body`."""

    variable: VarDecl
    collection: Expr
    body: Stmt


# Declarations. Those that may stand among statements are statements.


@dataclass(eq=False)
class Decl(Stmt):
    """A declaration."""

    annotations: list[Annotation]
    name: str


@dataclass(eq=False)
class VarDecl(Decl):
    """`type name = init;`."""

    node: TypeNode
    init: Expr | None
    type: Type = field(default=None, repr=False)  # type: ignore[assignment]


@dataclass(eq=False)
class ConstDecl(Decl):
    """`const type name = value;`."""

    node: TypeNode
    value: Expr
    type: Type = field(default=None, repr=False)  # type: ignore[assignment]


@dataclass(eq=False)
class Param(Decl):
    """A parameter; direction `in`, `out`, `inout` or empty."""

    direction: str
    node: TypeNode
    default: Expr | None
    type: Type = field(default=None, repr=False)  # type: ignore[assignment]

    @property
    def optional(self) -> bool:
        """Whether a call may leave the argument out."""
        return self.default is not None or any(annotation.name == "optional" for annotation in self.annotations)


@dataclass(eq=False)
class Instantiation(Decl):
    """`type(args) name = { body };`."""

    node: TypeNode
    args: list[Argument]
    body: list[Decl] | None
    type: Type = field(default=None, repr=False)  # type: ignore[assignment]
    call: Call = field(default=None, repr=False)  # type: ignore[assignment]


@dataclass(eq=False)
class TypeParam(Decl):
    """A type parameter."""


@dataclass(eq=False)
class Callable(Decl):
    """What functions, methods, and their like have in common."""

    result: TypeNode
    type_params: list[TypeParam]
    params: list[Param]
    result_type: Type = field(default=None, repr=False, kw_only=True)  # type: ignore[assignment]


@dataclass(eq=False)
class FunctionDecl(Callable):
    """A function with a body."""

    body: Block


@dataclass(eq=False)
class ExternFunction(Callable):
    """An extern function."""


@dataclass(eq=False)
class MethodDecl(Callable):
    """A method of an extern; constructors have the name of the extern."""

    abstract: bool


@dataclass(eq=False)
class ActionDecl(Decl):
    """An action."""

    params: list[Param]
    body: Block


@dataclass(eq=False)
class ExternDecl(Decl):
    """An extern type; `methods` is None for a forward declaration."""

    type_params: list[TypeParam]
    methods: list[MethodDecl] | None


@dataclass(eq=False)
class BlockType(Decl):
    """The type of a parser, control or package; `keyword` says which."""

    keyword: str
    type_params: list[TypeParam]
    params: list[Param]


@dataclass(eq=False)
class State(Decl):
    """A parser state; `transition` None goes to reject."""

    statements: list[Stmt]
    transition: Transition | None


@dataclass(eq=False)
class Transition(Node):
    """A transition."""


@dataclass(eq=False)
class DirectTransition(Transition):
    """`transition state;`."""

    state: str


@dataclass(eq=False)
class SelectCase(Node):
    """`keyset: state;`."""

    keyset: list[Expr]
    state: str


@dataclass(eq=False)
class SelectTransition(Transition):
    """`transition select(keys) { cases }`."""

    keys: list[Expr]
    cases: list[SelectCase]


@dataclass(eq=False)
class ParserDecl(Decl):
    """A parser."""

    type_params: list[TypeParam]
    params: list[Param]
    constructor_params: list[Param]
    locals: list[Decl]
    states: list[State]


@dataclass(eq=False)
class ControlDecl(Decl):
    """A control."""

    type_params: list[TypeParam]
    params: list[Param]
    constructor_params: list[Param]
    locals: list[Decl]
    body: Block


@dataclass(eq=False)
class KeyElement(Node):
    """`expr : match_kind @name("...")`."""

    expr: Expr
    match_kind: str
    annotations: list[Annotation]


@dataclass(eq=False)
class ActionRef(Node):
    """An action in a table's list, or with arguments as default or in an entry."""

    name: str
    args: list[Argument]
    annotations: list[Annotation]
    decl: ActionDecl = field(default=None, repr=False)  # type: ignore[assignment]
    bound: list[BoundArgument] = field(default_factory=list, repr=False)


@dataclass(eq=False)
class Entry(Node):
    """`priority = p: keyset : action(args) @annotations;`."""

    keyset: list[Expr]
    action: ActionRef
    priority: Expr | None
    annotations: list[Annotation]


@dataclass(eq=False)
class Property(Node):
    """`const name = value;` in a table."""

    name: str
    const: bool
    value: Expr


@dataclass(eq=False)
class TableDecl(Decl):
    """A table."""

    keys: list[KeyElement]
    actions: list[ActionRef]
    entries: list[Entry]
    const_entries: bool
    default_action: ActionRef | None
    const_default: bool
    properties: list[Property]


@dataclass(eq=False)
class ValueSetDecl(Decl):
    """A parser value set."""

    node: TypeNode
    size: Expr


@dataclass(eq=False)
class FieldDecl(Node):
    """A field of a header, struct or union."""

    annotations: list[Annotation]
    name: str
    node: TypeNode


@dataclass(eq=False)
class RecordDecl(Decl):
    """A header, struct or header_union; `keyword` says which."""

    keyword: str
    type_params: list[TypeParam]
    fields: list[FieldDecl]


@dataclass(eq=False)
class EnumDecl(Decl):
    """An enum; serializable if it has a base type."""

    base: TypeNode | None
    members: list[tuple[str, Expr | None]]


@dataclass(eq=False)
class MembersDecl(Node):
    """`error {...}` or `match_kind {...}`."""

    keyword: str
    members: list[str]


@dataclass(eq=False)
class TypedefDecl(Decl):
    """`typedef` or `type`, the latter a distinct type."""

    node: TypeNode
    distinct: bool


@dataclass(eq=False)
class Program(Node):
    """A program."""

    declarations: list[Decl | MembersDecl]
