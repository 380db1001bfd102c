# ruff: noqa: D102 - a method per grammar rule, named like it
"""Parse tree to syntax tree: statements."""

from typing import Any

from lark import Token, Tree

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler.tree_expressions import ExpressionBuilder, ParseTree
from thc_p4_model.interfaces import Location


class StatementBuilder(ExpressionBuilder):
    """Adds statements and the declarations that may stand among them."""

    def _statements(self, items: list[Any]) -> list[Any]:
        return [
            self.build(item) for item in items if isinstance(item, Tree) and item.data not in ("empty", "annotations")
        ]

    def block(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Block:
        return s.Block(at, self._statements(children))

    parser_block = block

    def empty(self, _tree: ParseTree, at: Location, _children: list[Any]) -> s.Stmt:
        return s.Block(at, [])

    def assignment(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Stmt:
        return s.Assign(at, self.build(children[0]), str(children[1]), self.build(children[2]))

    def call_statement(self, tree: ParseTree, at: Location, children: list[Any]) -> s.Stmt:
        return s.CallStmt(at, self.call(tree, at, children))

    def conditional(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Stmt:
        parts = [child for child in children if isinstance(child, Tree)]
        no = self.build(parts[2]) if len(parts) == 3 else None
        return s.If(at, self.build(parts[0]), self.build(parts[1]), no)

    def return_statement(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Stmt:
        values = self.build_all(children)
        return s.Return(at, values[0] if values else None)

    def break_statement(self, _tree: ParseTree, at: Location, _children: list[Any]) -> s.Stmt:
        return s.Break(at)

    def continue_statement(self, _tree: ParseTree, at: Location, _children: list[Any]) -> s.Stmt:
        return s.Continue(at)

    def exit_statement(self, _tree: ParseTree, at: Location, _children: list[Any]) -> s.Stmt:
        return s.Exit(at)

    def switch_statement(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Stmt:
        subject, *cases = self.build_all(children)
        return s.Switch(at, subject, cases)

    def switch_case(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.SwitchCase:
        label, block = children
        value = None if label.data == "default_label" else self.build(label)
        return s.SwitchCase(at, value, self.build(block) if block is not None else None)

    def for_statement(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Stmt:
        _annotations, _keyword, init, condition, update, body = children
        return s.For(
            at, self.build_all(init.children), self.build(condition), self.build_all(update.children), self.build(body)
        )

    def for_in_statement(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Stmt:
        variable, collection, body = (child for child in children[1:] if isinstance(child, Tree))
        return s.ForIn(at, self.build(variable), self.build(collection), self.build(body))

    def var_decl(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Decl:
        annotations, node, name, *init = children
        value = self.build(init[0]) if init else None
        return s.VarDecl(at, self.annotations(annotations), str(name), self.build(node), value)

    for_variable = for_in_variable = var_decl

    def const_decl(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Decl:
        annotations, _keyword, node, name, value = (
            child for child in children if not (isinstance(child, Token) and child.type == "EQUALS")
        )
        return s.ConstDecl(at, self.annotations(annotations), str(name), self.build(node), self.build(value))

    def params(self, tree: Any) -> list[s.Param]:
        """The parameters of an optional `params` tree."""
        return self.build_all(tree.children) if tree is not None else []

    def param(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Param:
        annotations, direction, node, name, *default = children
        return s.Param(
            at,
            self.annotations(annotations),
            str(name),
            str(direction.children[0]) if direction is not None else "",
            self.build(node),
            self.build(default[0]) if default else None,
        )

    def instantiation(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Decl:
        annotations, node, args, name, body = children
        declarations = self.build_all(body.children) if body is not None else None
        return s.Instantiation(
            at, self.annotations(annotations), str(name), self.build(node), self.args(args), declarations
        )

    def function_decl(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.FunctionDecl:
        annotations, result, name, type_params, params, body = children
        return s.FunctionDecl(
            at,
            self.annotations(annotations),
            str(name),
            self.build(result),
            self.type_params(type_params),
            self.params(params),
            self.build(body),
        )

    def type_params(self, tree: Any) -> list[s.TypeParam]:
        """The type parameters of an optional `type_params` tree."""
        if tree is None:
            return []
        at = self.location(tree)
        ends = ("LESS_ARGS", "MORETHAN", "GREATER_SHIFT")
        return [s.TypeParam(at, [], str(token)) for token in tree.children if token.type not in ends]
