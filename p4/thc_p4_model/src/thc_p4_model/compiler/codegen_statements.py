"""Statements."""

from collections.abc import Iterator
from contextlib import contextmanager

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler.codegen_base import Variable
from thc_p4_model.compiler.codegen_calls import CallGenerator

_MAX_ITERATIONS = 1 << 16
"""Of one loop statement; more are an error: a counter that wraps round would never end."""


class StatementGenerator(CallGenerator):
    """Adds statements."""

    def __init__(self) -> None:
        super().__init__()
        self._updates: list[s.Stmt] = []
        """The update statements of the innermost loop."""

    def switch_on_action(self, stmt: s.Switch) -> None:
        """Emit a switch on the action a table ran."""
        raise NotImplementedError

    def body(self, block: s.Block) -> None:
        """Emit a block."""
        for stmt in block.statements:
            self.statement(stmt)

    def statement(self, stmt: s.Stmt) -> None:
        """Emit one statement."""
        match stmt:
            case s.Assign():
                self.assign(stmt)
            case s.CallStmt():
                self.call_statement(stmt.call)
            case s.Block():
                self.body(stmt)
            case s.If():
                self._if(stmt)
            case s.VarDecl():
                self.declare(stmt)
            case s.ConstDecl():
                pass
            case s.Return():
                self._return(stmt)
            case s.Exit():
                self.function_state.exits = True
                self.emit("raise P4Exit")
            case s.Switch() if stmt.table is not None:
                self.switch_on_action(stmt)
            case s.Switch():
                self._switch(stmt)
            case s.For():
                self._for(stmt)
            case s.ForIn():
                self._for_in(stmt)
            case s.Break():
                self.emit("break")
            case s.Continue():
                self._continue()
            case _:
                self.fail(stmt, "this statement is not supported here")

    def declare(self, decl: s.VarDecl) -> None:
        """Emit a variable with its first value."""
        code = self.fresh(decl.init) if decl.init is not None else self.types.new_code(self.substituted(decl.type))
        known = self.bindings.get(decl)
        if isinstance(known, Variable) and known.cell:
            self.function_state.nonlocals.add(known.code)
            variable = known
        else:
            variable = Variable(self.name(decl.name))
        self.emit(f"{variable.code} = {code}")
        self.bindings[decl] = variable

    def _if(self, stmt: s.If) -> None:
        condition = self.value(stmt.condition)
        if condition in ("True", "False"):
            chosen = stmt.yes if condition == "True" else stmt.no
            if chosen is not None:
                self.statement(chosen)
            return
        self.emit(f"if {condition}:")
        with self.indented():
            self.statement(stmt.yes)
        self._else(stmt.no)

    def _else(self, stmt: s.Stmt | None) -> None:
        while isinstance(stmt, s.If):
            with self.captured() as lines:
                condition = self.value(stmt.condition)
            if lines or condition in ("True", "False"):
                break
            self.emit(f"elif {condition}:")
            with self.indented():
                self.statement(stmt.yes)
            stmt = stmt.no
        if stmt is None:
            return
        with self.captured() as lines, self.indented():
            self.statement(stmt)
        if any(line.strip() != "pass" for line in lines):
            self.emit("else:")
            self.lines.extend(lines)

    def _return(self, stmt: s.Return) -> None:
        target = self.returns
        target.used = True
        if not target.is_function:
            if target.loops:
                self.emit(f"{target.flag} = True")
            self.emit("break")
            return
        values = ([self.fresh(stmt.value)] if stmt.value is not None else []) + target.outs
        self.emit(f"return {', '.join(values)}".rstrip())

    def _switch(self, stmt: s.Switch) -> None:
        subject = self.stable(self.value(stmt.subject), "subject")
        labels: list[str] = []
        word = "if"
        for case in stmt.cases:
            if case.label is None:
                labels = []
            else:
                labels.append(f"{subject} == {self.value(case.label)}")
            if case.block is None:
                if case.label is None:
                    self.fail(case, "default needs a block")
                continue
            if case.label is None and word == "if":
                self.body(case.block)
                return
            self.emit("else:" if case.label is None else f"{word} {' or '.join(labels)}:")
            with self.indented():
                self.body(case.block)
            labels = []
            word = "elif"

    # Loops

    def _for(self, stmt: s.For) -> None:
        for item in stmt.init:
            self.statement(item)
        iterations = self.temp("0", "iterations")
        with self._loop():
            self.emit("while True:")
            with self.indented():
                self.emit(f"if not {self.value(stmt.condition)}: break")
                self.emit(f"{iterations} += 1")
                self._check_iterations(stmt, iterations)
                saved, self._updates = self._updates, stmt.update
                self.statement(stmt.body)
                self._updates = saved
                for item in stmt.update:
                    self.statement(item)

    def _for_in(self, stmt: s.ForIn) -> None:
        assert isinstance(stmt.collection, s.Range)
        low, high = self.values([stmt.collection.low, stmt.collection.high])
        variable = self.name(stmt.variable.name)
        with self._loop(), self.bound({stmt.variable: Variable(variable)}):
            self._check_iterations(stmt, f"{high} - {low} + 1")
            self.emit(f"for {variable} in range({low}, {high} + 1):")
            with self.indented():
                saved, self._updates = self._updates, []
                self.statement(stmt.body)
                self._updates = saved

    def _check_iterations(self, stmt: s.Stmt, count: str) -> None:
        """Emit the end of a loop that runs too often."""
        where = f"Location({stmt.location.path!r}, {stmt.location.line})"
        message = f"this loop runs more than {_MAX_ITERATIONS} times"
        self.emit(f"if {count} > {_MAX_ITERATIONS}: raise P4Error({where}, {message!r})")

    def _continue(self) -> None:
        for item in self._updates:
            self.statement(item)
        self.emit("continue")

    @contextmanager
    def _loop(self) -> Iterator[None]:
        """A P4 loop inside: `return` of inlined code leaves it by a flag, then the code."""
        target = self.returns
        was_used, target.used = target.used, False
        target.loops += 1
        with self.captured() as lines:
            yield
        target.loops -= 1
        leave = target.used and not target.is_function
        if leave and not target.loops:
            self.emit(f"{target.flag} = False")
        self.lines.extend(lines)
        if leave:
            self.emit(f"if {target.flag}: break")
        target.used = target.used or was_used
