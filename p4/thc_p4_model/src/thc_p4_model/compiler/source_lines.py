"""A source file as the preprocessor reads it: lines without comments, continued lines joined, strings in one piece."""

import re
from dataclasses import dataclass

from thc_p4_model.interfaces import Location, P4Error

_PARTS = r'//[^\n]*|/\*.*?\*/|%s|\\\n|\n|/\*|[^/"\\\n]+|.'
#: A string ends at the next quote, which may be lines away.
_WITH_STRINGS = re.compile(_PARTS % r'"(?:\\.|[^"\\])*"', re.DOTALL)
#: A string in directives and skipped text ends with the line at the latest: prose may have quotes.
_WITHIN_A_LINE = re.compile(_PARTS % r'"(?:\\[^\n]|[^"\\\n])*"', re.DOTALL)
_CHARACTER = re.compile(r"\\.|.", re.DOTALL)


@dataclass(frozen=True)
class SourceLine:
    """numbers[i]: of the line in the file that the part of `text` behind its i-th line break begins in."""

    text: str
    numbers: tuple[int, ...]

    @property
    def is_directive(self) -> bool:
        """Whether it is for the preprocessor alone."""
        return self.text.lstrip().startswith("#")

    def and_then(self, line: "SourceLine") -> "SourceLine":
        """Return both as one line."""
        return SourceLine(f"{self.text} {line.text}", self.numbers + line.numbers[1:])


class SourceLines:
    """The lines of a file, one after another. path: the file's name in errors."""

    def __init__(self, source: str, path: str) -> None:
        self._source, self._path = source, path
        self._position, self._number = 0, 1

    def next(self, *, skipped: bool = False) -> SourceLine | None:
        """Return the next line, None behind the last one. skipped: nobody will read it. Raises P4Error."""
        if self._position == len(self._source):
            return None
        text, numbers = "", [self._number]
        while self._position < len(self._source):
            directive = text.lstrip().startswith("#")
            parts = _WITHIN_A_LINE if directive or skipped else _WITH_STRINGS
            match = parts.match(self._source, self._position)
            assert match is not None
            part, self._position = match[0], match.end()
            if part == "/*":
                raise P4Error(Location(self._path, self._number), "comment without its end")
            if part.startswith('"'):
                text += self._string(part, numbers)
                continue
            self._number += part.count("\n")
            if part == "\n":
                break
            if part == "\\\n":
                text += " "
            elif part.startswith(("//", "/*")):
                text += " "
                if "\n" in part and not directive:
                    break  # so that the next token has the number of its own line
            else:
                text += part
        return SourceLine(text, tuple(numbers))

    def _string(self, part: str, numbers: list[int]) -> str:
        """Count the lines of a string; return it without the breaks that are escaped."""
        kept = ""
        for character in _CHARACTER.findall(part):
            if character.endswith("\n"):
                self._number += 1
            if character == "\\\n":
                continue
            if character == "\n":
                numbers.append(self._number)
            kept += character
        return kept
