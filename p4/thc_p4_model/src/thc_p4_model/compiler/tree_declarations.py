# ruff: noqa: D102 - a method per grammar rule, named like it
"""Parse tree to syntax tree: declarations."""

from typing import Any

from lark import Token, Tree

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler.tree_expressions import ParseTree, is_tree
from thc_p4_model.compiler.tree_statements import StatementBuilder
from thc_p4_model.interfaces import Location, P4Error


def _has_token(children: list[Any], kind: str) -> bool:
    return any(isinstance(child, Token) and child.type == kind for child in children)


def _names(children: list[Any], keyword_types: tuple[str, ...]) -> list[str]:
    return [str(child) for child in children if isinstance(child, Token) and child.type not in keyword_types]


class DeclarationBuilder(StatementBuilder):
    """Adds top-level declarations, parsers, controls and tables."""

    def start(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Program:
        return s.Program(at, self.build_all(children))

    def record_decl(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Decl:
        annotations, keyword, name, type_params, *fields = children
        return s.RecordDecl(
            at,
            self.annotations(annotations),
            str(name),
            str(keyword),
            self.type_params(type_params),
            self.build_all(fields),
        )

    def field(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.FieldDecl:
        annotations, node, name = children
        return s.FieldDecl(at, self.annotations(annotations), str(name), self.build(node))

    def enum_decl(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Decl:
        annotations, _keyword, name, *members = children
        return s.EnumDecl(at, self.annotations(annotations), str(name), None, [self._enum_member(m) for m in members])

    def serializable_enum_decl(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Decl:
        annotations, _keyword, base, name, *members = children
        values = [self._enum_member(member) for member in members]
        return s.EnumDecl(at, self.annotations(annotations), str(name), self.build(base), values)

    def _enum_member(self, tree: ParseTree) -> tuple[str, s.Expr | None]:
        values = self.build_all(tree.children)
        return str(tree.children[0]), values[0] if values else None

    def members_decl(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.MembersDecl:
        keyword, *names = children
        return s.MembersDecl(at, str(keyword), [str(name) for name in names])

    def typedef_decl(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Decl:
        annotations, keyword, node, name = children
        return s.TypedefDecl(at, self.annotations(annotations), str(name), self.build(node), keyword == "type")

    def package_type(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Decl:
        annotations, keyword, name, type_params, params = children
        return s.BlockType(
            at,
            self.annotations(annotations),
            str(name),
            str(keyword),
            self.type_params(type_params),
            self.params(params),
        )

    parser_type = control_type = package_type

    def extern_function(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Decl:
        annotations, _keyword, result, name, type_params, params = children
        return s.ExternFunction(
            at,
            self.annotations(annotations),
            str(name),
            self.build(result),
            self.type_params(type_params),
            self.params(params),
        )

    def extern_decl(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Decl:
        annotations, _keyword, name, type_params, *methods = children
        return s.ExternDecl(
            at, self.annotations(annotations), str(name), self.type_params(type_params), self.build_all(methods)
        )

    def extern_forward(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Decl:
        annotations, _keyword, name, type_params = children
        return s.ExternDecl(at, self.annotations(annotations), str(name), self.type_params(type_params), None)

    def method(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Decl:
        annotations, abstract, result, name, type_params, params = children
        return s.MethodDecl(
            at,
            self.annotations(annotations),
            str(name),
            self.build(result),
            self.type_params(type_params),
            self.params(params),
            abstract is not None,
        )

    def constructor(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Decl:
        annotations, name, params = children
        void = s.SimpleTypeNode(at, "void")
        return s.MethodDecl(at, self.annotations(annotations), str(name), void, [], self.params(params), abstract=False)

    def action_decl(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Decl:
        annotations, _keyword, name, params, body = children
        return s.ActionDecl(at, self.annotations(annotations), str(name), self.params(params), self.build(body))

    # Parsers

    def parser_decl(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Decl:
        annotations, _keyword, name, type_params, params, constructor_params, *body = children
        built = self.build_all(body)
        return s.ParserDecl(
            at,
            self.annotations(annotations),
            str(name),
            self.type_params(type_params),
            self.params(params),
            self.params(constructor_params),
            [item for item in built if not isinstance(item, s.State)],
            [item for item in built if isinstance(item, s.State)],
        )

    def state(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Decl:
        annotations, _keyword, name, statements, *transition = children
        built = self.build(transition[0]) if transition and transition[0] is not None else None
        return s.State(at, self.annotations(annotations), str(name), self._statements(statements.children), built)

    def direct_transition(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Transition:
        return s.DirectTransition(at, str(children[1]))

    def select_transition(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Transition:
        keys, *cases = (child for child in children if isinstance(child, Tree))
        return s.SelectTransition(at, self.build_all(keys.children), self.build_all(cases))

    def select_case(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.SelectCase:
        return s.SelectCase(at, self.build_all(children[0].children), str(children[1]))

    def value_set(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Decl:
        annotations = self.annotations(children[0])
        node, size = self.build_all(children[1:])
        return s.ValueSetDecl(at, annotations, str(children[-1]), node, size)

    # Controls and tables

    def control_decl(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Decl:
        annotations, _keyword, name, type_params, params, constructor_params, *body = children
        *declarations, block = self.build_all(body)
        return s.ControlDecl(
            at,
            self.annotations(annotations),
            str(name),
            self.type_params(type_params),
            self.params(params),
            self.params(constructor_params),
            declarations,
            block,
        )

    def table_decl(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Decl:
        annotations, _keyword, name, *properties = children
        table = s.TableDecl(at, self.annotations(annotations), str(name), [], [], [], False, None, False, [])
        seen: set[str] = set()
        for item in properties:
            if item.data in seen and item.data != "table_property":
                raise P4Error(self.location(item), f"table {table.name} has this property twice")
            seen.add(item.data)
            parts = item.children[1:]
            const = _has_token(parts, "CONST")
            trees = [part for part in parts if isinstance(part, Tree)]
            match item.data:
                case "table_keys":
                    table.keys = self.build_all(trees)
                case "table_actions":
                    table.actions = self.build_all(trees)
                case "table_entries":
                    table.entries, table.const_entries = self.build_all(trees), const
                case "table_default":
                    table.default_action, table.const_default = self.build(trees[0]), const
                case _:
                    name = next(str(part) for part in parts if isinstance(part, Token) and part.type != "CONST")
                    table.properties.append(s.Property(self.location(item), name, const, self.build(trees[0])))
        if "table_actions" not in seen:
            raise P4Error(at, f"table {table.name} has no actions")
        return table

    def key_element(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.KeyElement:
        expr, match_kind, annotations = children
        return s.KeyElement(at, self.build(expr), str(match_kind), self.annotations(annotations))

    def action_item(self, _tree: ParseTree, _at: Location, children: list[Any]) -> s.ActionRef:
        reference: s.ActionRef = self.build(children[1])
        reference.annotations = self.annotations(children[0])
        return reference

    def action_ref(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.ActionRef:
        name, args = children
        return s.ActionRef(at, str(name), self.args(args) if args is not None else [], [])

    def entry(self, _tree: ParseTree, at: Location, children: list[Any]) -> s.Entry:
        trees = [child for child in children if is_tree(child, "priority", "keyset", "action_ref")]
        priority = self.build(trees[0].children[-1]) if trees[0].data == "priority" else None
        annotations = self.annotations(children[-1])
        const = _has_token(children, "CONST")
        return s.Entry(at, self.build_all(trees[-2].children), self.build(trees[-1]), const, priority, annotations)
