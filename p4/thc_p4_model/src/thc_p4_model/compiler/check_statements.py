"""Statements."""

from collections.abc import Iterator
from contextlib import contextmanager

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.calls import CallKind
from thc_p4_model.compiler.check_calls import CallChecker
from thc_p4_model.compiler.check_types import fail
from thc_p4_model.compiler.constants import NotConstant, evaluate
from thc_p4_model.compiler.inference import why_not_writable
from thc_p4_model.compiler.scope import Scope

_NOT_VARIABLES = (t.ExternType, t.BlockRef, t.BlockTypeRef, t.TableType, t.ApplyResult)


class StatementChecker(CallChecker):
    """Adds statements and the declarations among them."""

    _result: t.Type = t.VOID
    _loops = 0

    @contextmanager
    def inner_scope(self) -> Iterator[None]:
        """Names declared inside are forgotten afterwards."""
        outer, self.scope = self.scope, Scope(self.scope)
        try:
            yield
        finally:
            self.scope = outer

    @contextmanager
    def code_of(self, context: str, result: t.Type = t.VOID) -> Iterator[None]:
        """The statements inside belong to a `context` (see there) that returns `result`."""
        saved = self.context, self._result, self._loops
        self.context, self._result, self._loops = context, result, 0
        try:
            yield
        finally:
            self.context, self._result, self._loops = saved

    def statements(self, statements: list[s.Stmt]) -> None:
        """Check statements in the present scope."""
        for statement in statements:
            self.statement(statement)

    def block(self, block: s.Block) -> None:
        """Check a block in a scope of its own."""
        with self.inner_scope():
            self.statements(block.statements)

    def statement(self, stmt: s.Stmt) -> None:
        """Check one statement."""
        match stmt:
            case s.Assign():
                self._assign(stmt)
            case s.CallStmt():
                self._call_statement(stmt)
            case s.Block():
                self.block(stmt)
            case s.If():
                stmt.condition = self.condition(stmt.condition)
                for branch in (stmt.yes, stmt.no):
                    if branch is not None:
                        with self.inner_scope():
                            self.statement(branch)
            case s.Return():
                self._return(stmt)
            case s.Exit():
                if self.context not in ("control", "action"):
                    fail(stmt, f"exit cannot stand in a {self.context}")
            case s.Switch():
                self._switch(stmt)
            case s.For():
                self._for(stmt)
            case s.ForIn():
                self._for_in(stmt)
            case s.Break() | s.Continue():
                if not self._loops:
                    fail(stmt, "break and continue stand only in loops")
            case s.VarDecl():
                self.variable(stmt)
            case s.ConstDecl():
                self.const(stmt)
            case _:
                fail(stmt, "this declaration cannot stand among statements")

    # Declarations

    def variable(self, decl: s.VarDecl) -> None:
        """Check and define a variable."""
        type_ = self.resolve(decl.node)
        if isinstance(type_, _NOT_VARIABLES) or type_ in (t.VOID, t.STRING, t.MATCH_KIND, t.DONT_CARE, t.INTEGER):
            fail(decl, f"a variable cannot be {type_}")
        if decl.init is not None:
            decl.init = self.coerce(self.expr(decl.init), type_, f"the value of {decl.name}")
        decl.type = type_
        self.scope.define(decl)

    def const(self, decl: s.ConstDecl) -> None:
        """Check and define a constant."""
        type_ = self.resolve(decl.node)
        decl.value = self.coerce(self.expr(decl.value), type_, f"the value of {decl.name}")
        try:
            evaluate(decl.value)
        except NotConstant:
            if not self._uses_constructor_param(decl.value):
                fail(decl, f"the value of {decl.name} must be known at compile time")
        decl.type = type_
        self.scope.define(decl)

    def _uses_constructor_param(self, expr: s.Expr) -> bool:
        match expr:
            case s.Name(decl=s.Param(direction="")):
                return True
            case s.Name(decl=s.ConstDecl(value=value)):
                return self._uses_constructor_param(value)
            case s.Binary(left=left, right=right):
                return self._uses_constructor_param(left) or self._uses_constructor_param(right)
            case s.Unary(operand=operand) | s.Cast(operand=operand):
                return self._uses_constructor_param(operand)
        return False

    # Statements

    def _assign(self, stmt: s.Assign) -> None:
        target = stmt.target = self.expr(stmt.target)
        reason = why_not_writable(target)
        if reason is not None:
            fail(stmt, f"cannot assign: {reason}")
        value = self.expr(stmt.value)
        if stmt.op != "=":
            current = s.Current(stmt.location, stmt, type=target.type)
            value = self.expr(s.Binary(stmt.location, stmt.op[:-1], current, value))
        stmt.value = self.coerce(value, target.type, "the value assigned")

    def _call_statement(self, stmt: s.CallStmt) -> None:
        self.expr(stmt.call)
        if stmt.call.target.kind is CallKind.CONSTRUCTOR:
            fail(stmt, "an instance needs a name")

    def _return(self, stmt: s.Return) -> None:
        if self.context == "parser":
            fail(stmt, "return cannot stand in a parser")
        if stmt.value is None:
            if self._result is not t.VOID:
                fail(stmt, f"a value of type {self._result} must be returned")
            return
        if self._result is t.VOID:
            fail(stmt, "there is no value to return here")
        stmt.value = self.coerce(self.expr(stmt.value), self._result, "the value returned")

    def _switch(self, stmt: s.Switch) -> None:
        subject = stmt.subject = self.expr(stmt.subject)
        if isinstance(subject.type, t.ActionRun):
            stmt.table = subject.type.decl
        elif not isinstance(t.strip(subject.type), (t.BitType, t.EnumType)) and subject.type not in (t.BOOL, t.ERROR):
            fail(subject, f"switch works on numbers, enums and action_run, not on {subject.type}")
        seen: set[object] = set()
        for case in stmt.cases:
            key = self._switch_label(stmt, case)
            if key in seen:
                fail(case, "this label occurs twice")
            if None in seen:
                fail(case, "default must be the last label")
            seen.add(key)
            if case.block is not None:
                self.block(case.block)
        if stmt.cases and stmt.cases[-1].block is None:
            fail(stmt.cases[-1], "the last label of a switch needs a block")

    def _switch_label(self, stmt: s.Switch, case: s.SwitchCase) -> object:
        """Check a label; gives its value, None for default."""
        if case.label is None:
            return None
        if stmt.table is None:
            case.label = self.coerce(self.expr(case.label), stmt.subject.type, "a label")
            return self.constant(case.label, "a label")
        actions = {reference.name for reference in stmt.table.actions}
        if not isinstance(case.label, s.Name) or case.label.name not in actions:
            shown = case.label.name if isinstance(case.label, s.Name) else "this"
            fail(case, f"{shown} is not an action of table {stmt.table.name}")
        return case.label.name

    def _for(self, stmt: s.For) -> None:
        with self.inner_scope():
            self.statements(stmt.init)
            stmt.condition = self.condition(stmt.condition)
            self.statements(stmt.update)
            self._loop_body(stmt.body)

    def _for_in(self, stmt: s.ForIn) -> None:
        collection = stmt.collection
        if not isinstance(collection, s.Range):
            fail(collection, "for ... in works on ranges (low .. high) only")
        with self.inner_scope():
            self.variable(stmt.variable)
            what = "a bound of the range"
            collection.low = self.coerce(self.expr(collection.low), stmt.variable.type, what)
            collection.high = self.coerce(self.expr(collection.high), stmt.variable.type, what)
            self._loop_body(stmt.body)

    def _loop_body(self, body: s.Stmt) -> None:
        self._loops += 1
        with self.inner_scope():
            self.statement(body)
        self._loops -= 1
