"""Conditions of `#if` and `#elif`: integers, `defined`, and C's operators."""

import operator
import re
from collections.abc import Callable, Mapping

from thc_p4_model.compiler.macros import Macro, expand
from thc_p4_model.interfaces import Location, P4Error

_DEFINED = re.compile(r"\bdefined\s*(?:\(\s*([A-Za-z_]\w*)\s*\)|([A-Za-z_]\w*))")
_TOKEN = re.compile(r"\s*(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+|[A-Za-z_]\w*|&&|\|\||[=!<>]=|<<|>>|[-+*/%<>!~&|^()])")

_LEVELS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a) or bool(b))},
    {"&&": lambda a, b: int(bool(a) and bool(b))},
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {
        "<": lambda a, b: int(a < b),
        ">": lambda a, b: int(a > b),
        "<=": lambda a, b: int(a <= b),
        ">=": lambda a, b: int(a >= b),
    },
    {"<<": operator.lshift, ">>": operator.rshift},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": operator.floordiv, "%": operator.mod},
)
"""Binary operators, loosest first."""


def evaluate_condition(text: str, macros: Mapping[str, Macro], location: Location) -> bool:
    """Whether the condition holds; names that are no macros count as 0, as in C."""
    text = _DEFINED.sub(lambda match: "1" if (match[1] or match[2]) in macros else "0", text)
    expanded = expand(text, macros, location)
    if expanded is None:
        raise P4Error(location, "a macro call in #if without its closing parenthesis")
    return bool(_Condition(expanded, location).value())


class _Condition:
    def __init__(self, text: str, location: Location) -> None:
        self._location = location
        self._tokens: list[str] = []
        position, text = 0, text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if not match:
                raise P4Error(location, f"#if: cannot read {text[position:].strip()!r}")
            self._tokens.append(match[1])
            position = match.end()
        self._next = 0

    def value(self) -> int:
        value = self._binary(0)
        if self._next < len(self._tokens):
            raise P4Error(self._location, f"#if: unexpected {self._tokens[self._next]!r}")
        return value

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _binary(self, level: int) -> int:
        if level == len(_LEVELS):
            return self._unary()
        left = self._binary(level + 1)
        while self._peek() in _LEVELS[level]:
            function = _LEVELS[level][self._peek()]
            self._next += 1
            right = self._binary(level + 1)
            try:
                left = function(left, right)
            except (ZeroDivisionError, ValueError) as error:
                raise P4Error(self._location, f"#if: {error}") from error
        return left

    def _unary(self) -> int:
        token = self._peek()
        self._next += 1
        if token == "!":
            return int(not self._unary())
        if token == "-":
            return -self._unary()
        if token == "+":
            return self._unary()
        if token == "~":
            return ~self._unary()
        if token == "(":
            value = self._binary(0)
            if self._peek() != ")":
                raise P4Error(self._location, "#if: a closing parenthesis is missing")
            self._next += 1
            return value
        if token[:1].isdigit():
            return int(token, 0) if token.lower().startswith(("0x", "0b")) else int(token, 10)
        if token and (token[0].isalpha() or token[0] == "_"):
            return 0
        raise P4Error(self._location, "#if: the condition is incomplete")
