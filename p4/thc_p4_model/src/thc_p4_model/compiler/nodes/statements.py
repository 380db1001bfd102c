"""Statements."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from thc_p4_model.compiler.nodes.expressions import Call, Expr
from thc_p4_model.compiler.nodes.root import Node

if TYPE_CHECKING:
    from thc_p4_model.compiler.nodes.blocks import TableDecl
    from thc_p4_model.compiler.nodes.declarations import VarDecl


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
    table: "TableDecl | None" = None


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

    variable: "VarDecl"
    collection: Expr
    body: Stmt
