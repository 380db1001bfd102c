"""Compilation of generated Python that is nested deeper than Python's own parser goes."""

import ast
from collections.abc import Sequence
from types import CodeType

INDENT = "    "
_MAX_LEVELS = 80
"""Of indentation that are parsed at once; Python's tokenizer gives up at 100."""


def compile_nested(source: str, filename: str) -> CodeType:
    """As `compile(source, filename, "exec")`, for any depth; every statement of `source` is one line."""
    return compile(_parse(source.split("\n"), 0, filename), filename, "exec")


def _parse(lines: Sequence[str], first: int, filename: str) -> ast.Module:
    """The tree of lines numbered from `first`. Too deeply indented code is parsed by itself and inserted."""
    margin = len(lines[0]) - len(lines[0].lstrip())
    limit = margin + _MAX_LEVELS * len(INDENT)
    kept: list[str] = []
    suites: dict[str, ast.Module] = {}
    number = 0
    while number < len(lines):
        if not lines[number].startswith(" " * limit):
            kept.append(lines[number][margin:])
            number += 1
            continue
        end = number
        while end < len(lines) and lines[end].startswith(" " * limit):
            end += 1
        name = f"suite_{number}"
        suites[name] = _parse(lines[number:end], first + number, filename)
        kept += [lines[number][margin:limit] + name, *[""] * (end - number - 1)]
        number = end
    tree = ast.parse("\n".join(kept), filename)
    ast.increment_lineno(tree, first)
    if suites:
        _put_in_place(tree, suites)
    return tree


def _put_in_place(tree: ast.Module, suites: dict[str, ast.Module]) -> None:
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            match getattr(node, field, None):
                case [ast.Expr(value=ast.Name(id=name))] if name in suites:
                    setattr(node, field, suites.pop(name).body)
