"""Parsers, controls, actions, tables, and functions."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.check_tables import TableChecker, can_be_key
from thc_p4_model.compiler.check_types import fail

_FINAL_STATES = ("accept", "reject")


class BlockChecker(TableChecker):
    """Adds everything with a body."""

    def params(self, params: Sequence[s.Param], owner: str) -> None:
        """Check and define parameters."""
        optional_before = None
        for param in params:
            param.type = self.resolve(param.node)
            if param.type is t.VOID or (param.type is t.INTEGER and param.direction in ("out", "inout")):
                fail(param, f"{param.name} of {owner} cannot be {param.type}")
            if param.type is t.STRING and param.direction:
                fail(param, f"{param.name} of {owner} is a string: it has no direction")
            if isinstance(param.type, t.ExternType) and param.direction:
                fail(param, f"{param.name} of {owner} is an extern: it has no direction")
            if param.default is not None:
                if param.direction in ("out", "inout"):
                    fail(param, f"{param.name} of {owner} is {param.direction}: it cannot have a default")
                param.default = self.coerce(self.expr(param.default), param.type, f"the default of {param.name}")
            if optional_before and not param.optional:
                fail(param, f"{param.name} of {owner} follows the optional {optional_before}")
            optional_before = param.name if param.optional else optional_before
            self.scope.define(param)

    @contextmanager
    def _type_params(self, params: Sequence[s.TypeParam]) -> Iterator[None]:
        with self.inner_scope():
            for param in params:
                self.scope.define(param)
            yield

    def signature(self, decl: s.Callable) -> None:
        """Resolve the types of a function without body."""
        with self._type_params(decl.type_params):
            decl.result_type = self.resolve(decl.result)
            self.params(decl.params, decl.name)

    def block_type(self, decl: s.BlockType) -> None:
        """Resolve the types of a parser, control or package type."""
        with self._type_params(decl.type_params):
            self.params(decl.params, decl.name)

    def function(self, decl: s.FunctionDecl, context: str = "function") -> None:
        """Check a function or the implementation of an abstract method."""
        with self._type_params(decl.type_params):
            decl.result_type = self.resolve(decl.result)
            self.params(decl.params, decl.name)
            with self.code_of(context, decl.result_type):
                self.block(decl.body)
        if decl.result_type is not t.VOID and not _always_returns(decl.body):
            fail(decl, f"{decl.name} does not return a value on every path")

    def action(self, decl: s.ActionDecl) -> None:
        """Check an action."""
        seen_plain = None
        for param in decl.params:
            if param.direction and seen_plain:
                fail(param, f"{param.name} has a direction, so it must stand before {seen_plain}")
            seen_plain = seen_plain if param.direction else param.name
        with self.inner_scope():
            self.params(decl.params, decl.name)
            with self.code_of("action"):
                self.block(decl.body)

    def instantiation(self, decl: s.Instantiation) -> None:
        """Check and define an instance."""
        named = self.resolve(decl.node)
        call = s.Call(decl.location, s.TypeExpr(decl.location, decl.node), [], decl.args)
        self.construct(call, named, decl.args)
        decl.call, decl.type = call, call.type
        if decl.body is not None:
            self._implementations(decl, decl.body)
        else:
            self._require_no_abstract(decl)
        self.scope.define(decl)

    def _require_no_abstract(self, decl: s.Instantiation) -> None:
        if isinstance(decl.type, t.ExternType):
            for method in decl.type.decl.methods or []:
                if method.abstract and not any(note.name == "optional" for note in method.annotations):
                    fail(decl, f"{decl.name} must implement {method.name} of {decl.type.decl.name}")

    def _implementations(self, decl: s.Instantiation, body: list[s.Decl]) -> None:
        if not isinstance(decl.type, t.ExternType):
            fail(decl, f"only externs have methods to implement, not {decl.type}")
        extern = decl.type.decl
        bindings = {t.TypeVar(param): arg for param, arg in zip(extern.type_params, decl.type.args, strict=True)}
        done: set[str] = set()
        for function in body:
            if not isinstance(function, s.FunctionDecl):
                fail(function, "instances inside an initialiser are not supported")
            methods = [item for item in extern.methods or [] if item.abstract and item.name == function.name]
            if not methods or function.name in done:
                fail(function, f"{extern.name} has no abstract method {function.name} left to implement")
            done.add(function.name)
            self.function(function, "method")
            self._same_signature(function, methods, bindings)
        for method in extern.methods or []:
            optional = any(note.name == "optional" for note in method.annotations)
            if method.abstract and method.name not in done and not optional:
                fail(decl, f"{decl.name} must implement {method.name} of {extern.name}")

    def _same_signature(self, function: s.FunctionDecl, methods: Sequence[s.MethodDecl], bindings: t.Bindings) -> None:
        fitting = [
            method
            for method in methods
            if sum(1 for param in method.params if not param.optional) <= len(function.params) <= len(method.params)
        ]
        if not fitting:
            fail(function, f"{function.name} must have {len(methods[0].params)} parameters")
        for wanted, given in zip(fitting[0].params, function.params, strict=False):
            type_ = t.substitute(wanted.type, bindings)
            open_type = type_ is t.DONT_CARE or isinstance(type_, t.TypeVar)
            if (given.type != type_ and not open_type) or given.direction != wanted.direction:
                fail(given, f"{given.name} of {function.name} must be {wanted.direction} {type_}")

    # Parsers

    def parser(self, decl: s.ParserDecl) -> None:
        """Check a parser."""
        self._no_type_params(decl)
        with self.inner_scope(), self.code_of("parser"):
            self.in_parser = True
            self.params(decl.constructor_params, decl.name)
            self.params(decl.params, decl.name)
            for item in decl.locals:
                self.local(item)
            names = self._state_names(decl)
            for state in decl.states:
                with self.inner_scope():
                    self.statements(state.statements)
                    self._transition(state, names)
            self.in_parser = False

    def _state_names(self, decl: s.ParserDecl) -> set[str]:
        names: set[str] = set(_FINAL_STATES)
        for state in decl.states:
            if state.name in names:
                fail(state, f"state {state.name} is already declared")
            names.add(state.name)
        if "start" not in names:
            fail(decl, f"parser {decl.name} has no state start")
        return names

    def _transition(self, state: s.State, names: set[str]) -> None:
        transition = state.transition
        if isinstance(transition, s.DirectTransition):
            _require_state(transition, transition.state, names)
        elif isinstance(transition, s.SelectTransition):
            transition.keys = [self._select_key(key) for key in transition.keys]
            types = [key.type for key in transition.keys]
            for case in transition.cases:
                _require_state(case, case.state, names)
                case.keyset = self.keyset(case.keyset, types, case)

    def _select_key(self, key: s.Expr) -> s.Expr:
        checked = self.expr(key)
        if not can_be_key(checked.type):
            fail(key, f"select works on numbers, bools and enums, not on {checked.type}")
        return checked

    # Controls

    def control(self, decl: s.ControlDecl) -> None:
        """Check a control."""
        self._no_type_params(decl)
        with self.inner_scope():
            self.params(decl.constructor_params, decl.name)
            self.params(decl.params, decl.name)
            with self.inner_scope():
                for item in decl.locals:
                    self.local(item)
                with self.code_of("control"):
                    self.block(decl.body)

    def _no_type_params(self, decl: s.ParserDecl | s.ControlDecl) -> None:
        if decl.type_params:
            fail(decl, f"{decl.name} has a body: it cannot have type parameters")

    def local(self, item: s.Decl) -> None:
        """Check and define a declaration of a parser or control."""
        match item:
            case s.VarDecl():
                self.variable(item)
            case s.ConstDecl():
                self.const(item)
            case s.Instantiation():
                self.instantiation(item)
            case s.ActionDecl():
                self.action(item)
                self.scope.define(item)
            case s.TableDecl():
                self.table(item)
                self.scope.define(item)
            case s.ValueSetDecl():
                fail(item, "value_set is not supported: list the values in the select")
            case _:
                fail(item, "this cannot be declared here")


def _require_state(node: s.Node, name: str, names: set[str]) -> None:
    if name not in names:
        fail(node, f"unknown state {name}")


def _always_returns(stmt: s.Stmt | None) -> bool:
    match stmt:
        case s.Return() | s.Exit():
            return True
        case s.Block(statements=statements):
            return any(_always_returns(item) for item in statements)
        case s.If(yes=yes, no=no):
            return _always_returns(yes) and _always_returns(no)
        case s.Switch(cases=cases):
            blocks = [case.block for case in cases if case.block is not None]
            return any(case.label is None for case in cases) and all(_always_returns(block) for block in blocks)
    return False
