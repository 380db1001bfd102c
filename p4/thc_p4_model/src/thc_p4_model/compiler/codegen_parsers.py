"""Parsers: states become code in a tree where they can, and numbered cases of a loop where paths meet."""

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler.codegen_base import BlockInstance, is_literal, literal
from thc_p4_model.compiler.codegen_tables import TableGenerator

_FINAL = ("accept", "reject")
_MAX_STEPS = 1 << 16
"""Transitions of a parser with a loop, which may read nothing (advance(0)); after them it stops: ParserTimeout."""
_MAX_DEPTH = 12
"""States inlined into each other; deeper ones become cases of the loop."""


class ParserGenerator(TableGenerator):
    """Adds parsers."""

    def parser_states(self, instance: BlockInstance) -> None:
        """Emit all states of a parser, its parameters and locals bound."""
        decl = instance.decl
        assert isinstance(decl, s.ParserDecl)
        machine = _Machine(decl)
        if machine.numbers == {"start": 0} and not machine.loops_to_start:
            with self.captured() as lines, self.indented():
                self._state(machine, machine.states["start"], 0)
            self.emit("while True:")
            self.lines.extend(lines)
            with self.indented():
                self.emit("break")
            return
        state = machine.variable = self.name("state")
        self.emit(f"{state} = 0")
        steps = self.temp("0", "steps") if machine.has_loop else ""
        self.emit("while True:")
        with self.indented():
            if steps:
                self.emit(f"{steps} += 1")
                self.emit(f"if {steps} > {_MAX_STEPS}: raise ParserError('ParserTimeout')")
            done = 0
            word = "if"
            while done < len(machine.numbers):
                name, number = list(machine.numbers.items())[done]
                self.emit(f"{word} {state} == {number}:")
                with self.indented():
                    self._state(machine, machine.states[name], 0)
                done += 1
                word = "elif"

    def _state(self, machine: "_Machine", state: s.State, depth: int) -> None:
        with self.bound({}):
            for stmt in state.statements:
                self.statement(stmt)
            match state.transition:
                case s.DirectTransition() as direct:
                    self._go(machine, direct.state, depth)
                case s.SelectTransition() as select:
                    self._select(machine, select, depth)
                case _:
                    self._go(machine, "reject", depth)

    def _go(self, machine: "_Machine", name: str, depth: int) -> None:
        if name == "accept":
            self.emit("break")
        elif name == "reject":
            self.emit("raise ParserError('NoError')")
        elif machine.is_numbered(name, depth):
            self.emit(f"{machine.variable} = {machine.number(name)}")
            self.emit("continue")
        else:
            self._state(machine, machine.states[name], depth + 1)

    def _select(self, machine: "_Machine", select: s.SelectTransition, depth: int) -> None:
        keys = [self.stable(key, "key") for key in self.values(select.keys)]
        for case in select.cases:
            conditions = [
                condition
                for key, item in zip(keys, case.keyset, strict=True)
                if (condition := self._condition(key, item))
            ]
            if not conditions:
                self._go(machine, case.state, depth)
                return
            with self.captured() as lines, self.indented():
                self._go(machine, case.state, depth)
            self.emit(f"if {' and '.join(conditions)}:")
            self.lines.extend(lines)
        self.emit("raise ParserError('NoMatch')")

    def _condition(self, key: str, item: s.Expr) -> str:
        """Code for whether the key matches; empty if it always does."""
        match item:
            case s.DontCare():
                return ""
            case s.Mask():
                value, mask = self.value(item.value), self.value(item.mask)
                if is_literal(value) and is_literal(mask):
                    value = literal(int(value, 0) & int(mask, 0))
                    return f"{key} & {mask} == {value}"
                return f"{key} & {mask} == {value} & {mask}"
            case s.Range():
                return f"{self.value(item.low)} <= {key} <= {self.value(item.high)}"
        return f"{key} == {self.value(item)}"


class _Machine:
    """The states of a parser, and which are numbered."""

    def __init__(self, decl: s.ParserDecl) -> None:
        self.states = {state.name: state for state in decl.states}
        self.variable = ""
        self.numbers: dict[str, int] = {"start": 0}
        references: dict[str, int] = {}
        for state in self._reachable():
            for target in _targets(state):
                references[target] = references.get(target, 0) + 1
        self.loops_to_start = references.get("start", 0) > 0
        for name, count in references.items():
            if name not in _FINAL and (count > 1 or self._reaches_itself(name)):
                self.number(name)
        self.has_loop = any(self._reaches_itself(state.name) for state in self._reachable())

    def number(self, name: str) -> int:
        """The number of a state; from now on it has one."""
        return self.numbers.setdefault(name, len(self.numbers))

    def is_numbered(self, name: str, depth: int) -> bool:
        """Whether a transition uses the loop, as too deep ones do if a loop exists."""
        return name in self.numbers or (depth >= _MAX_DEPTH and bool(self.variable))

    def _reachable(self) -> list[s.State]:
        seen = {"start": self.states["start"]}
        todo = [self.states["start"]]
        while todo:
            for target in _targets(todo.pop()):
                if target not in seen and target not in _FINAL:
                    seen[target] = self.states[target]
                    todo.append(self.states[target])
        return list(seen.values())

    def _reaches_itself(self, name: str) -> bool:
        seen: set[str] = set()
        todo = [name]
        while todo:
            for target in _targets(self.states[todo.pop()]):
                if target == name:
                    return True
                if target not in seen and target not in _FINAL:
                    seen.add(target)
                    todo.append(target)
        return False


def _targets(state: s.State) -> list[str]:
    match state.transition:
        case s.DirectTransition(state=target):
            return [target]
        case s.SelectTransition(cases=cases):
            return [case.state for case in cases]
    return []
