"""Parsers, controls and tables."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from thc_p4_model.compiler.nodes.declarations import ActionDecl, Decl, Param, TypeParam
from thc_p4_model.compiler.nodes.expressions import Argument, Expr, TypeNode
from thc_p4_model.compiler.nodes.root import Annotation, Node
from thc_p4_model.compiler.nodes.statements import Block, Stmt

if TYPE_CHECKING:
    from thc_p4_model.compiler.calls import BoundArgument


@dataclass(eq=False)
class State(Decl):
    """A parser state; `transition` None goes to reject."""

    statements: list[Stmt]
    transition: "Transition | None"


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
    bound: list["BoundArgument"] = field(default_factory=list, repr=False)


@dataclass(eq=False)
class Entry(Node):
    """`const priority = p: keyset : action(args) @annotations;`."""

    keyset: list[Expr]
    action: ActionRef
    const: bool
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
