"""The C preprocessor P4 programs are written for.

Directives, object-like and function-like macros with `#` and `##`, and `@pragma` lines. Every output line knows the
file and line it came from, so that later errors name the source and not the expanded text.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from thc_p4_model.compiler.macros import Macro, expand, parse_macro, tokenize
from thc_p4_model.compiler.preprocessor_condition import evaluate_condition
from thc_p4_model.compiler.source_lines import SourceLine, SourceLines
from thc_p4_model.interfaces import Location, P4Error

MAX_INCLUDE_DEPTH = 64
_DIRECTIVE = re.compile(r"\s*#\s*([A-Za-z_]\w*)?\s*(.*)$", re.DOTALL)
_PRAGMA = re.compile(r"^(\s*)@pragma\s+(\w+)(.*)$")


@dataclass(frozen=True)
class SourceText:
    """Preprocessed text; `origins[i]` is the origin of line i + 1."""

    text: str
    origins: Sequence[Location]
    files: frozenset[str]
    """Names, without folders, of all files included."""

    def origin(self, line: int) -> Location:
        """The origin of line `line` (from 1) of the text."""
        return self.origins[min(max(line, 1), len(self.origins)) - 1]


@dataclass
class _Conditional:
    """One `#if` that is open: whether its present branch is active and whether one of its branches was taken."""

    location: Location
    parent_active: bool
    active: bool
    taken: bool
    seen_else: bool = False


class Preprocessor:
    """Preprocesses one program."""

    def __init__(self, include_dirs: Sequence[Path], defines: Mapping[str, str]) -> None:
        self._include_dirs = include_dirs
        self._macros: dict[str, Macro] = {
            name: Macro(name, None, tokenize(value), variadic=False) for name, value in defines.items()
        }
        self._lines: list[str] = []
        self._origins: list[Location] = []
        self._files: set[str] = set()

    def run(self, path: Path) -> SourceText:
        """The expanded program. Raises P4Error."""
        if not path.is_file():
            raise P4Error(Location(str(path), 1), "there is no such file")
        self._file(path, 0)
        if not self._origins:
            self._lines, self._origins = [""], [Location(str(path), 1)]
        return SourceText("\n".join(self._lines) + "\n", self._origins, frozenset(self._files))

    def _file(self, path: Path, depth: int) -> None:
        shown = os.path.relpath(path) if path.is_absolute() and path.is_relative_to(Path.cwd()) else str(path)
        self._files.add(path.name)
        lines = SourceLines(_text(path, shown), shown)
        conditionals: list[_Conditional] = []
        active = True
        while (line := lines.next(skipped=not active)) is not None:
            if line.is_directive:
                self._directive(line.text, Location(shown, line.numbers[0]), path, depth, conditionals)
            elif active:
                self._expanded(line, shown, lines)
            active = not conditionals or conditionals[-1].active
        if conditionals:
            raise P4Error(conditionals[-1].location, "#if without #endif")

    def _expanded(self, line: SourceLine, shown: str, lines: SourceLines) -> None:
        """Expand a line, taking in further ones while a macro call's parentheses are open."""
        location = Location(shown, line.numbers[0])
        pragma = _PRAGMA.match(line.text)
        if pragma:
            line = replace(line, text=f"{pragma[1]}@{pragma[2]}({pragma[3].strip()})")
        expanded = expand(line.text, self._macros, location)
        while expanded is None:
            more = lines.next()
            if more is None or more.is_directive:
                raise P4Error(location, "a macro call without its closing parenthesis")
            line = line.and_then(more)
            expanded = expand(line.text, self._macros, location)
        for number, part in enumerate(expanded.split("\n")):
            self._lines.append(part)
            self._origins.append(Location(shown, line.numbers[min(number, len(line.numbers) - 1)]))

    def _directive(
        self, text: str, location: Location, path: Path, depth: int, conditionals: list[_Conditional]
    ) -> None:
        match = _DIRECTIVE.match(text)
        assert match is not None
        name, rest = match[1], match[2].strip()
        if name in ("if", "ifdef", "ifndef", "elif", "else", "endif"):
            self._conditional(name, rest, location, conditionals)
            return
        if conditionals and not conditionals[-1].active:
            return
        match name:
            case None | "pragma" | "line":
                pass
            case "include":
                self._include(rest, location, path, depth)
            case "define":
                macro = parse_macro(rest, location)
                self._macros[macro.name] = macro
            case "undef":
                self._macros.pop(rest, None)
            case "error":
                raise P4Error(location, f"#error {rest}")
            case "warning":
                pass
            case _:
                raise P4Error(location, f"unknown directive #{name}")

    def _conditional(self, name: str, rest: str, location: Location, conditionals: list[_Conditional]) -> None:
        if name in ("if", "ifdef", "ifndef"):
            parent_active = not conditionals or conditionals[-1].active
            active = parent_active and self._condition(name, rest, location)
            conditionals.append(_Conditional(location, parent_active, active, taken=active))
            return
        if not conditionals:
            raise P4Error(location, f"#{name} without #if")
        top = conditionals[-1]
        if name == "endif":
            conditionals.pop()
            return
        if top.seen_else:
            raise P4Error(location, f"#{name} after #else")
        if name == "else":
            top.seen_else = True
            top.active = top.parent_active and not top.taken
        else:
            top.active = top.parent_active and not top.taken and self._condition("if", rest, location)
        top.taken = top.taken or top.active

    def _condition(self, name: str, rest: str, location: Location) -> bool:
        if name == "if":
            return evaluate_condition(rest, self._macros, location)
        if not re.fullmatch(r"[A-Za-z_]\w*", rest):
            raise P4Error(location, f"#{name} needs one name")
        return (rest in self._macros) == (name == "ifdef")

    def _include(self, rest: str, location: Location, path: Path, depth: int) -> None:
        if not rest.startswith(("<", '"')):
            rest = expand(rest, self._macros, location) or ""
        match = re.fullmatch(r'\s*(?:"([^"]+)"|<([^>]+)>)\s*', rest)
        if not match:
            raise P4Error(location, '#include needs "FILE" or <FILE>')
        if depth >= MAX_INCLUDE_DEPTH:
            raise P4Error(
                location, f"#include nested {MAX_INCLUDE_DEPTH} deep: does {match[1] or match[2]} include itself?"
            )
        places = [path.parent, *self._include_dirs] if match[1] else self._include_dirs
        for place in places:
            candidate = place / (match[1] or match[2])
            if candidate.is_file():
                self._file(candidate, depth + 1)
                return
        searched = ", ".join(str(place) for place in places) or "nowhere: no include folder given"
        raise P4Error(location, f"cannot find {match[1] or match[2]} (searched {searched})")


def _text(path: Path, shown: str) -> str:
    data = path.read_bytes()
    try:
        return data.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = 1 + data[: error.start].count(b"\n")
        raise P4Error(Location(shown, line), f"byte {data[error.start]:#x} is not UTF-8: convert the file") from None
