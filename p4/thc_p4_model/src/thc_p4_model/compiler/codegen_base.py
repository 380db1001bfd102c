"""Common base of the code generator: emitted lines, bindings of declarations, functions being generated."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.codegen_types import TypeFactory
from thc_p4_model.interfaces import Location, P4Error

SIMPLE = re.compile(r"[A-Za-z_]\w*\Z")
"""Code that is one Python name."""
_LITERAL = re.compile(r"-?(0x[0-9a-f]+|\d+)\Z|True\Z|False\Z|'[^'\\]*'\Z")
_NOT_WORD = re.compile(r"\W+")


@dataclass(frozen=True)
class Variable:
    """A declaration that lives in a Python variable, or at a path such as `hdr.ipv4`."""

    code: str
    cell: bool = False
    """Whether the variable belongs to the instance, because abstract methods use it, and not to one function."""


@dataclass(frozen=True)
class Constant:
    """A declaration whose value is known."""

    value: Any


@dataclass(eq=False)
class ExternInstance:
    """An extern instance: its Python variable, type and name."""

    code: str
    type: t.ExternType
    name: str


@dataclass(eq=False)
class TableInstance:
    """A table of one control instance."""

    decl: s.TableDecl
    code: str
    owner: "BlockInstance"
    """The control it belongs to."""


@dataclass(eq=False)
class BlockInstance:
    """A parser or control instance, with the meanings of its declarations."""

    decl: s.ParserDecl | s.ControlDecl
    name: str
    bindings: dict[s.Node, Any]
    cells: dict[s.Node, Variable] = field(default_factory=dict)
    """Variables and parameters that abstract methods use."""


@dataclass(eq=False)
class PackageInstance:
    """A package instance: the arguments are instances and constants."""

    type: t.BlockTypeRef
    name: str
    args: dict[str, Any]
    location: Location


@dataclass(eq=False)
class ReturnTarget:
    """How `return` leaves the code being generated."""

    is_function: bool
    """Python's `return` of `results`; otherwise a break out of a loop around the inlined code."""
    outs: list[str] = field(default_factory=list)
    """Variables whose values follow the return value in a Python `return`."""
    flag: str = ""
    """Variable of inlined code that tells, inside P4 loops, that the code returned."""
    used: bool = False
    loops: int = 0


@dataclass(eq=False)
class FunctionState:
    """The Python function being generated."""

    nonlocals: set[str] = field(default_factory=set)
    exits: bool = False


class GeneratorBase:
    """Lines, names and bindings."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {}
        self.types = TypeFactory(self.namespace)
        self.lines: list[str] = []
        self.indent = 0
        self.bindings: dict[s.Node, Any] = {}
        self.type_bindings: t.Bindings = {}
        self.function_state = FunctionState()
        self.returns = ReturnTarget(is_function=True)
        self._names = 0

    # Lines

    def emit(self, line: str) -> None:
        """Append a line at the present indentation."""
        self.lines.append("    " * self.indent + line)

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Indent lines emitted inside; emit `pass` if none are."""
        before = len(self.lines)
        self.indent += 1
        yield
        if len(self.lines) == before:
            self.emit("pass")
        self.indent -= 1

    @contextmanager
    def captured(self) -> Iterator[list[str]]:
        """Lines emitted inside go to the list."""
        saved, self.lines = self.lines, []
        try:
            yield self.lines
        finally:
            self.lines = saved

    # Names

    def name(self, hint: str) -> str:
        """An unused Python name."""
        self._names += 1
        return f"{_NOT_WORD.sub('_', hint)}_{self._names}"

    def temp(self, code: str, hint: str = "t") -> str:
        """A variable set to the value of `code`."""
        name = self.name(hint)
        self.emit(f"{name} = {code}")
        return name

    def stable(self, code: str, hint: str = "t") -> str:
        """Code that can be used several times: `code` itself if it is a literal, otherwise a variable."""
        return code if is_literal(code) else self.temp(code, hint)

    # Bindings

    @contextmanager
    def bound(self, bindings: dict[s.Node, Any]) -> Iterator[None]:
        """More bindings inside."""
        saved, self.bindings = self.bindings, {**self.bindings, **bindings}
        try:
            yield
        finally:
            self.bindings = saved

    def type_of(self, expr: s.Expr) -> t.Type:
        """The type of an expression, type parameters of the function being generated replaced."""
        return t.substitute(expr.type, self.type_bindings)

    def constants(self) -> Mapping[s.Node, Any]:
        """The declarations with known values, for the evaluation of constants."""
        return _ConstantView(self.bindings)

    def fail(self, node: s.Node, message: str) -> NoReturn:
        """Raise a P4Error at the node."""
        raise P4Error(node.location, message)


class _ConstantView(Mapping[s.Node, Any]):
    """The constants among bindings."""

    def __init__(self, bindings: Mapping[s.Node, Any]) -> None:
        self._bindings = bindings

    def __contains__(self, decl: object) -> bool:
        return isinstance(self._bindings.get(decl), Constant)  # type: ignore[call-overload]

    def __getitem__(self, decl: s.Node) -> Any:
        return self._bindings[decl].value

    def __iter__(self) -> Iterator[s.Node]:
        return (decl for decl in self._bindings if decl in self)

    def __len__(self) -> int:
        return sum(1 for _decl in self)


def is_literal(code: str) -> bool:
    """Whether the code is a Python literal of a scalar."""
    return bool(_LITERAL.match(code))


def literal(value: Any) -> str:
    """Python code for a constant."""
    if isinstance(value, bool) or not isinstance(value, int):
        return repr(value)
    return hex(value) if value > 255 else str(value)
