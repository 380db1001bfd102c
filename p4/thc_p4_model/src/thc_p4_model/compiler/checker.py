"""Name resolution and type check of a whole program."""

from dataclasses import dataclass

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.check_blocks import BlockChecker
from thc_p4_model.compiler.check_types import fail


@dataclass(frozen=True)
class CheckedProgram:
    """A program whose tree carries types and targets."""

    tree: s.Program
    main: s.Instantiation
    types: dict[str, t.Type]
    """Headers, structs, unions and enums by name."""
    constants: dict[str, s.ConstDecl]
    errors: tuple[str, ...]


def check(tree: s.Program) -> CheckedProgram:
    """Check the program and annotate its tree. Raises P4Error at the first mistake."""
    checker = _ProgramChecker()
    for decl in tree.declarations:
        checker.declaration(decl)
    main = checker.scope.own("main")
    if not isinstance(main, s.Instantiation) or not isinstance(main.type, t.BlockTypeRef):
        fail(tree.declarations[-1] if tree.declarations else tree, "the program has no package instance main")
    return CheckedProgram(tree, main, checker.types, checker.constants, tuple(checker.errors))


class _ProgramChecker(BlockChecker):
    """Adds top-level declarations."""

    def __init__(self) -> None:
        super().__init__()
        self.types: dict[str, t.Type] = {}
        self.constants: dict[str, s.ConstDecl] = {}

    def declaration(self, decl: s.Decl | s.MembersDecl) -> None:
        match decl:
            case s.MembersDecl():
                self._members(decl)
                return
            case s.ExternDecl():
                self._extern(decl)
                return
            case s.ConstDecl():
                self.const(decl)
                self.constants[decl.name] = decl
                return
            case s.Instantiation():
                self.instantiation(decl)
                return
            case s.RecordDecl() | s.EnumDecl() | s.TypedefDecl():
                resolved = self.type_of_declaration(decl, (), decl.location)
                if isinstance(resolved, (t.RecordType, t.EnumType)) and decl.name == resolved.name:
                    self.types[decl.name] = resolved
            case s.BlockType():
                self.block_type(decl)
            case s.ExternFunction():
                self.signature(decl)
            case s.FunctionDecl():
                self.function(decl)
            case s.ActionDecl():
                self.action(decl)
            case s.ParserDecl():
                self.parser(decl)
            case s.ControlDecl():
                self.control(decl)
            case _:
                fail(decl, "this cannot be declared at top level")
        self.scope.define(decl)

    def _members(self, decl: s.MembersDecl) -> None:
        for name in decl.members:
            if decl.keyword == "match_kind":
                self.match_kinds.add(name)
            elif name in self.errors:
                fail(decl, f"error.{name} is already declared")
            else:
                self.errors.append(name)

    def _extern(self, decl: s.ExternDecl) -> None:
        known = self.scope.own(decl.name)
        if isinstance(known, s.ExternDecl) and known.methods is None:
            known.methods, known.type_params, known.annotations = decl.methods, decl.type_params, decl.annotations
            decl = known
        else:
            self.scope.define(decl)
        with self._type_params(decl.type_params):
            for method in decl.methods or []:
                self.signature(method)
        self._check_overloads(decl)

    def _check_overloads(self, decl: s.ExternDecl) -> None:
        seen: dict[tuple[str, int], s.MethodDecl] = {}
        for method in decl.methods or []:
            key = (method.name, len(method.params))
            if key in seen:
                fail(method, f"{decl.name}.{method.name} with {key[1]} parameters is already declared")
            seen[key] = method
