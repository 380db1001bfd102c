"""Resolution of types as written, and the checker's common base."""

from typing import Any, NoReturn

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.constants import NotConstant, evaluate
from thc_p4_model.compiler.scope import Scope
from thc_p4_model.interfaces import Location, P4Error

MAX_BITS = 65536
"""Widest bit<N> and largest stack the checker lets pass; beyond it a typing error is likelier than a need."""

_SIMPLE = {
    "bool": t.BOOL,
    "error": t.ERROR,
    "string": t.STRING,
    "void": t.VOID,
    "match_kind": t.MATCH_KIND,
    "_": t.DONT_CARE,
}


def fail(node: s.Node, message: str) -> NoReturn:
    """Raise a P4Error at the node."""
    raise P4Error(node.location, message)


class TypeResolver:
    """Turns type nodes into types."""

    def __init__(self) -> None:
        self.scope = Scope()
        self.errors: list[str] = []
        self.match_kinds: set[str] = set()
        self._types: dict[tuple[s.Decl, tuple[t.Type, ...]], t.Type] = {}

    def expr(self, expr: s.Expr, expected: t.Type | None = None) -> s.Expr:
        """Check an expression; gives the node to use in its place."""
        raise NotImplementedError

    def coerce(self, expr: s.Expr, target: t.Type, what: str) -> s.Expr:
        """The checked expression converted implicitly to a type. Raises P4Error if it cannot be."""
        raise NotImplementedError

    def constant(self, expr: s.Expr, what: str) -> Any:
        """The value of a checked expression. Raises P4Error if it is not known at compile time."""
        try:
            return evaluate(expr)
        except NotConstant:
            fail(expr, f"{what} must be known at compile time")

    def resolve(self, node: s.TypeNode) -> t.Type:
        """The type a node means. Raises P4Error."""
        match node:
            case s.SimpleTypeNode(keyword=keyword):
                return _SIMPLE[keyword]
            case s.BitsTypeNode():
                return self._bits(node)
            case s.TupleTypeNode(items=items):
                return t.TupleType(tuple(self.resolve(item) for item in items))
            case s.StackTypeNode():
                return self._stack(node)
            case s.NamedTypeNode():
                return self._named(node)
        raise AssertionError(node)

    def _bits(self, node: s.BitsTypeNode) -> t.Type:
        if node.width is None:
            return t.INTEGER if node.keyword == "int" else t.BitType(1)
        width = self.constant(self.expr(node.width), "a width")
        minimum = 1 if node.keyword == "int" else 0
        if not isinstance(width, int) or not minimum <= width <= MAX_BITS:
            fail(node, f"a width must be a number from {minimum} to {MAX_BITS}, not {width}")
        if node.keyword == "varbit":
            return t.VarbitType(width)
        return t.BitType(width, signed=node.keyword == "int")

    def _stack(self, node: s.StackTypeNode) -> t.Type:
        element = self.resolve(node.base)
        if not (isinstance(element, t.RecordType) and element.keyword in ("header", "header_union")):
            fail(node, f"only headers and header unions can be stacked, not {element}")
        size = self.constant(self.expr(node.size), "the size of a stack")
        if not isinstance(size, int) or not 1 <= size <= MAX_BITS:
            fail(node, f"the size of a stack must be a positive number, not {size}")
        return t.StackType(element, size)

    def _named(self, node: s.NamedTypeNode) -> t.Type:
        decl = self.scope.require(node.name, node.location, "type")
        args = tuple(self.resolve(arg) for arg in node.args)
        return self.type_of_declaration(decl, args, node.location)

    def type_of_declaration(self, decl: s.Decl, args: tuple[t.Type, ...], location: Location) -> t.Type:
        """The type that a declaration of a type means with these type arguments."""
        match decl:
            case s.ExternDecl(type_params=params) | s.BlockType(type_params=params) | s.RecordDecl(type_params=params):
                if args and len(args) != len(params):
                    raise P4Error(location, f"{decl.name} takes {len(params)} type arguments, not {len(args)}")
                args = args or tuple(t.TypeVar(param) for param in params)
            case _ if args:
                raise P4Error(location, f"{decl.name} takes no type arguments")
        match decl:
            case s.TypeParam():
                return t.TypeVar(decl)
            case s.ExternDecl():
                return t.ExternType(decl, args)
            case s.BlockType():
                return t.BlockTypeRef(decl, args)
            case s.ParserDecl() | s.ControlDecl():
                return t.BlockRef(decl)
            case s.RecordDecl() | s.EnumDecl() | s.TypedefDecl():
                key = (decl, args)
                if key not in self._types:
                    self._types[key] = self._new_type(decl, args)
                return self._types[key]
        raise P4Error(location, f"{decl.name} is not a type")

    def _new_type(self, decl: s.RecordDecl | s.EnumDecl | s.TypedefDecl, args: tuple[t.Type, ...]) -> t.Type:
        match decl:
            case s.RecordDecl():
                return self._record(decl, args)
            case s.EnumDecl():
                return self._enum(decl)
            case s.TypedefDecl():
                base = self.resolve(decl.node)
                return t.NewType(decl.name, base) if decl.distinct else base

    def _record(self, decl: s.RecordDecl, args: tuple[t.Type, ...]) -> t.Type:
        bindings = {t.TypeVar(param): arg for param, arg in zip(decl.type_params, args, strict=True)}
        outer, self.scope = self.scope, Scope(self.scope)
        for param in decl.type_params:
            self.scope.define(param)
        fields: dict[str, t.Type] = {}
        for field in decl.fields:
            if field.name in fields:
                fail(field, f"{decl.name} has two fields {field.name}")
            fields[field.name] = self._specialize(t.substitute(self.resolve(field.node), bindings), bindings)
            self._check_field(decl, field, fields[field.name])
        self.scope = outer
        return t.RecordType(decl.keyword, decl.name, fields, decl, args)

    def _specialize(self, type_: t.Type, bindings: dict[t.TypeVar, t.Type]) -> t.Type:
        if isinstance(type_, t.RecordType) and type_.args and bindings:
            args = tuple(t.substitute(arg, bindings) for arg in type_.args)
            return self.type_of_declaration(type_.decl, args, type_.decl.location)
        return type_

    def _check_field(self, decl: s.RecordDecl, field: s.FieldDecl, type_: t.Type) -> None:
        bare = t.strip(type_)
        scalar = isinstance(bare, (t.BitType, t.EnumType, t.TypeVar)) or bare is t.BOOL
        if decl.keyword == "header":
            nested = isinstance(bare, t.RecordType) and bare.keyword == "struct"
            if isinstance(bare, t.EnumType) and bare.base is None:
                fail(field, f"{bare} has no fixed width: it cannot be in a header")
            if not (scalar or nested or isinstance(bare, t.VarbitType)):
                fail(field, f"a header cannot contain {bare}")
        elif decl.keyword == "header_union":
            if not (isinstance(bare, t.RecordType) and bare.keyword == "header"):
                fail(field, f"a header_union contains only headers, not {bare}")
        elif not (
            scalar or bare is t.ERROR or isinstance(bare, (t.RecordType, t.StackType, t.TupleType, t.VarbitType))
        ):
            fail(field, f"a struct cannot contain {bare}")

    def _enum(self, decl: s.EnumDecl) -> t.Type:
        base: t.BitType | None = None
        if decl.base is not None:
            resolved = self.resolve(decl.base)
            if not isinstance(resolved, t.BitType):
                fail(decl, f"the base of enum {decl.name} must be bit<N> or int<N>, not {resolved}")
            base = resolved
        members: dict[str, int | str] = {}
        for name, value in decl.members:
            if name in members:
                fail(decl, f"{decl.name} has two members {name}")
            if (value is None) != (base is None):
                fail(decl, f"{decl.name}.{name}: members have values if and only if the enum has a base type")
            if value is None or base is None:
                members[name] = name
            else:
                checked = self.coerce(self.expr(value), base, f"{decl.name}.{name}")
                members[name] = self.constant(checked, f"{decl.name}.{name}")
        return t.EnumType(decl.name, base, members)
