# ruff: noqa: D102 - a method per grammar rule, named like it
"""Parse tree to syntax tree: types and expressions."""

import json
from typing import Any, TypeAlias

from lark import Token, Tree

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler.constants import MAX_INTEGER_BITS
from thc_p4_model.compiler.lexer import integer_literal
from thc_p4_model.compiler.preprocessor import SourceText
from thc_p4_model.interfaces import Location, P4Error

ParseTree: TypeAlias = Tree[Token]


def is_tree(item: Any, *names: str) -> bool:
    """Whether the item is a tree of one of the rules."""
    return isinstance(item, Tree) and item.data in names


_LEVELS = (
    ("||",),
    ("&&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("|",),
    ("^",),
    ("&",),
    ("<<", ">>"),
    ("+", "-", "++", "|+|", "|-|"),
    ("*", "/", "%"),
)
_BINDING = {operator: level for level, operators in enumerate(_LEVELS) for operator in operators}


def _reduce(operands: list[s.Expr], operators: list[str]) -> None:
    """Replace the last two operands by the last operation."""
    right, left = operands.pop(), operands.pop()
    operands.append(s.Binary(left.location, operators.pop(), left, right))


class ExpressionBuilder:
    """Builds nodes; `build` calls the method named like the rule."""

    def __init__(self, source: SourceText) -> None:
        self._source = source

    def location(self, tree: ParseTree) -> Location:
        """The tree's start."""
        return self._source.origin(getattr(tree.meta, "line", 1))

    def build(self, tree: Any) -> Any:
        """The node of a tree."""
        # A plain str: at the recursion limit, Token's comparison would make this an AttributeError.
        return getattr(self, str(tree.data))(tree, self.location(tree), tree.children)

    def build_all(self, items: list[Any]) -> list[Any]:
        """The nodes of the trees among the items."""
        return [self.build(item) for item in items if isinstance(item, Tree)]

    def annotations(self, tree: Any) -> list[s.Annotation]:
        """The annotations of an optional `annotations` tree."""
        if tree is None:
            return []
        nodes = []
        for token in tree.children:
            name, args = json.loads(token)
            nodes.append(s.Annotation(self._source.origin(token.line), name, tuple(args)))
        return nodes

    # Types

    def bits_type(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.TypeNode:
        width = next((self.build(child) for child in children if isinstance(child, Tree)), None)
        return s.BitsTypeNode(at, str(children[0]), width)

    def simple_type(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.TypeNode:
        return s.SimpleTypeNode(at, str(children[0]))

    def void_type(self, _tree: ParseTree, at: Location, _children: list[Any]) -> s.TypeNode:
        return s.SimpleTypeNode(at, "void")

    def dont_care_type(self, _tree: ParseTree, at: Location, _children: list[Any]) -> s.TypeNode:
        return s.SimpleTypeNode(at, "_")

    def unknown_type(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.TypeNode:
        return s.NamedTypeNode(at, str(children[0]), [])

    def named_type(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.TypeNode:
        return s.NamedTypeNode(at, str(children[0]), self.build_all(children))

    def tuple_type(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.TypeNode:
        if children[0] == "list":
            return s.NamedTypeNode(at, "list", self.build_all(children))
        return s.TupleTypeNode(at, self.build_all(children))

    def stack_type(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.TypeNode:
        return s.StackTypeNode(at, self.build(children[0]), self.build(children[1]))

    # Primary expressions

    def int_literal(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Expr:
        value, width, signed = integer_literal(children[0])
        if value.bit_length() > MAX_INTEGER_BITS or (width or 0) > MAX_INTEGER_BITS:
            raise P4Error(at, f"a number of more than {MAX_INTEGER_BITS} bits")
        return s.IntLit(at, value, width, signed)

    def bool_literal(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Expr:
        return s.BoolLit(at, children[0] == "true")

    def string_literal(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Expr:
        return s.StringLit(at, str(children[0])[1:-1].replace('\\"', '"').replace("\\\\", "\\"))

    def name_expr(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Expr:
        return s.Name(at, str(children[0]))

    def absolute_name(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Expr:
        return s.Name(at, str(children[0]), absolute=True)

    def this_expr(self, _tree: ParseTree, at: Location, _children: list[Any]) -> s.Expr:
        return s.Name(at, "this")

    def list_expr(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Expr:
        return s.ListExpr(at, self.build_all(children))

    def struct_expr(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Expr:
        fields: list[tuple[str, s.Expr]] = []
        for child in children:
            if child.data == "default_value":
                fields.append(("...", self.build(child)))
            else:
                fields.append((str(child.children[0]), self.build(child.children[1])))
        return s.StructExpr(at, fields)

    def invalid_header(self, _tree: ParseTree, at: Location, _children: list[Any]) -> s.Expr:
        return s.InvalidHeader(at)

    def default_value(self, _tree: ParseTree, at: Location, _children: list[Any]) -> s.Expr:
        return s.DefaultValue(at)

    # Members and calls

    def member(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Expr:
        return s.Member(at, self.build(children[0]), str(children[1]))

    lvalue_member = member

    def index(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Expr:
        return s.Index(at, self.build(children[0]), self.build(children[1]))

    lvalue_index = index

    def slice(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Expr:
        return s.Slice(at, *self.build_all(children))

    lvalue_slice = slice

    def type_member(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Expr:
        return s.Member(at, s.TypeExpr(at, self.build(children[0])), str(children[1]))

    def error_member(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Expr:
        return s.Member(at, s.TypeExpr(at, s.SimpleTypeNode(at, "error")), str(children[1]))

    def call(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Call:
        callee, type_args, args = children
        types = self.build_all(type_args.children) if type_args is not None else []
        return s.Call(at, self.build(callee), types, self.args(args))

    def type_call(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Call:
        return s.Call(at, s.TypeExpr(at, self.build(children[0])), [], self.args(children[1]))

    def args(self, tree: ParseTree) -> list[s.Argument]:
        arguments = []
        for child in tree.children:
            assert isinstance(child, Tree)
            at, parts = self.location(child), child.children
            if child.data == "skipped_argument":
                arguments.append(s.Argument(at, str(parts[0]) if len(parts) == 2 else None, None))
            elif len(parts) == 2:
                arguments.append(s.Argument(at, str(parts[0]), self.build(parts[1])))
            else:
                arguments.append(s.Argument(at, None, self.build(parts[0])))
        return arguments

    # Operators

    def operation(self, _tree: ParseTree, _at: Location, children: list[Any]) -> s.Expr:
        """Operands and operators in turn, put together by precedence climbing; all operators are left-associative."""
        operands: list[s.Expr] = [self.build(children[0])]
        operators: list[str] = []
        for operator, operand in zip(children[1::2], children[2::2], strict=True):
            symbol = ">>" if operator.type == "GREATER_SHIFT" else str(operator)
            while operators and _BINDING[operators[-1]] >= _BINDING[symbol]:
                _reduce(operands, operators)
            operators.append(symbol)
            operands.append(self.build(operand))
        while operators:
            _reduce(operands, operators)
        return operands[0]

    width_sum = operation

    def unary(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Expr:
        return s.Unary(at, str(children[0]), self.build(children[1]))

    def cast(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Expr:
        return s.Cast(at, self.build(children[0]), self.build(children[1]))

    def ternary(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Expr:
        return s.Ternary(at, *self.build_all(children))

    def mask(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Expr:
        return s.Mask(at, *self.build_all(children))

    def range(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Expr:
        return s.Range(at, *self.build_all(children))

    def dont_care(self, _tree: ParseTree, at: Location, _children: list[Any]) -> s.Expr:
        return s.DontCare(at)
