"""Declarations. Declarations that may stand among statements are statements."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from thc_p4_model.compiler.nodes.expressions import Argument, Call, Expr, TypeNode
from thc_p4_model.compiler.nodes.root import Annotation, Node
from thc_p4_model.compiler.nodes.statements import Block, Stmt

if TYPE_CHECKING:
    from thc_p4_model.compiler.types import Type


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
    type: "Type" = field(default=None, repr=False)  # type: ignore[assignment]


@dataclass(eq=False)
class ConstDecl(Decl):
    """`const type name = value;`."""

    node: TypeNode
    value: Expr
    type: "Type" = field(default=None, repr=False)  # type: ignore[assignment]


@dataclass(eq=False)
class Param(Decl):
    """A parameter; direction `in`, `out`, `inout` or empty."""

    direction: str
    node: TypeNode
    default: Expr | None
    type: "Type" = field(default=None, repr=False)  # type: ignore[assignment]

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
    type: "Type" = field(default=None, repr=False)  # type: ignore[assignment]
    call: Call = field(default=None, repr=False)  # type: ignore[assignment]


@dataclass(eq=False)
class TypeParam(Decl):
    """A type parameter."""


@dataclass(eq=False)
class Callable(Decl):
    """Common base of functions, methods and the like."""

    result: TypeNode
    type_params: list[TypeParam]
    params: list[Param]
    result_type: "Type" = field(default=None, repr=False, kw_only=True)  # type: ignore[assignment]


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
