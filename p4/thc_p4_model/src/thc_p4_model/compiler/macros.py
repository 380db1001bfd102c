"""Macro definitions and their expansion."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thc_p4_model.interfaces import Location, P4Error

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[A-Za-z_]\w*|\d\w*|\s+|##|.', re.DOTALL)
_DEFINITION = re.compile(r"([A-Za-z_]\w*)(\(([^)]*)\))?(.*)$", re.DOTALL)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")


@dataclass(frozen=True)
class Macro:
    """A macro; `params` is None for object-like ones. The last parameter of a variadic one takes all that is left."""

    name: str
    params: tuple[str, ...] | None
    body: Sequence[str]
    variadic: bool


class _Unfinished(Exception):  # noqa: N818 - not an error: the call continues in the next line
    """A macro call continues behind the end of the text."""


def tokenize(text: str) -> list[str]:
    """Preprocessing tokens; white space is kept as tokens."""
    return _TOKEN.findall(text)


def parse_macro(text: str, location: Location) -> Macro:
    """The macro that `#define text` defines."""
    match = _DEFINITION.match(text)
    if not match:
        raise P4Error(location, "#define needs a name")
    name, has_params, params_text, body = match.groups()
    body_tokens = tokenize(body.strip())
    if has_params is None:
        return Macro(name, None, body_tokens, variadic=False)
    params = [param.strip() for param in params_text.split(",")] if params_text.strip() else []
    variadic = bool(params) and params[-1] == "..."
    if variadic:
        params[-1] = "__VA_ARGS__"
    for param in params:
        if not _IDENTIFIER.match(param):
            raise P4Error(location, f"#define {name}: {param!r} is not a parameter name")
    return Macro(name, tuple(params), body_tokens, variadic)


def expand(text: str, macros: Mapping[str, Macro], location: Location) -> str | None:
    """The text with all macros expanded; None if a macro call in it is not finished."""
    try:
        return "".join(_expand(tokenize(text), macros, frozenset(), location))
    except _Unfinished:
        return None


def _expand(tokens: list[str], macros: Mapping[str, Macro], active: frozenset[str], location: Location) -> list[str]:
    """`active` holds the macros being expanded: they are not expanded again in their own result."""
    result: list[str] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        index += 1
        if token == "__LINE__":
            result.append(str(location.line))
            continue
        if token == "__FILE__":
            result.append(f'"{location.path}"')
            continue
        macro = macros.get(token)
        if macro is None or token in active:
            result.append(token)
            continue
        args: list[list[str]] = []
        if macro.params is not None:
            opening = _skip_space(tokens, index)
            if opening == len(tokens) or tokens[opening] != "(":
                result.append(token)
                continue
            args, index = _arguments(tokens, opening + 1)
        body = _substitute(macro, args, macros, active, location)
        result.extend(_expand(body, macros, active | {token}, location))
    return result


def _skip_space(tokens: list[str], index: int) -> int:
    while index < len(tokens) and tokens[index].isspace():
        index += 1
    return index


def _arguments(tokens: list[str], index: int) -> tuple[list[list[str]], int]:
    """The arguments of a call whose `(` is before `index`, and the index after its `)`."""
    args: list[list[str]] = [[]]
    depth = 0
    while index < len(tokens):
        token = tokens[index]
        index += 1
        if token == ")" and depth == 0:
            return [_strip(arg) for arg in args], index
        depth += (token in "([{") - (token in ")]}")
        if token == "," and depth == 0:
            args.append([])
        else:
            args[-1].append(token)
    raise _Unfinished


def _strip(tokens: list[str]) -> list[str]:
    start, end = 0, len(tokens)
    while start < end and tokens[start].isspace():
        start += 1
    while end > start and tokens[end - 1].isspace():
        end -= 1
    return tokens[start:end]


def _substitute(
    macro: Macro, args: list[list[str]], macros: Mapping[str, Macro], active: frozenset[str], location: Location
) -> list[str]:
    """The body with arguments put in, `#` and `##` applied."""
    if macro.params is None:
        return _paste([[token] for token in macro.body])
    if macro.variadic and len(args) > len(macro.params):
        last = len(macro.params) - 1
        rest = args[last]
        for arg in args[last + 1 :]:
            rest = [*rest, ",", *arg]
        args = [*args[:last], rest]
    if not macro.params and args == [[]]:
        args = []
    if macro.variadic and len(args) == len(macro.params) - 1:
        args = [*args, []]
    if len(args) != len(macro.params):
        raise P4Error(location, f"macro {macro.name} takes {len(macro.params)} arguments, not {len(args)}")
    by_name = dict(zip(macro.params, args, strict=True))
    pieces: list[list[str]] = []
    body = macro.body
    index = 0
    while index < len(body):
        token = body[index]
        index += 1
        if token == "#" and index < len(body) and body[index] in by_name:
            quoted = "".join(by_name[body[index]]).replace("\\", "\\\\").replace('"', '\\"')
            pieces.append([f'"{quoted}"'])
            index += 1
        elif token in by_name:
            beside_paste = _is_paste(body, index - 1)
            arg = by_name[token]
            pieces.append(list(arg) if beside_paste else _expand(list(arg), macros, active, location))
        else:
            pieces.append([token])
    return _paste(pieces)


def _is_paste(body: Sequence[str], index: int) -> bool:
    """Whether the token at `index` is an operand of `##`."""
    before = next((token for token in reversed(body[:index]) if not token.isspace()), "")
    after = next((token for token in body[index + 1 :] if not token.isspace()), "")
    return "##" in (before, after)


def _paste(pieces: list[list[str]]) -> list[str]:
    """Join pieces, gluing the neighbours of `##`."""
    result: list[str] = []
    gluing = False
    for piece in pieces:
        if piece == ["##"]:
            while result and result[-1].isspace():
                result.pop()
            gluing = True
        elif gluing and not (piece and all(token.isspace() for token in piece)):
            gluing = False
            if result and piece:
                result[-1:] = tokenize(result[-1] + piece[0]) + piece[1:]
            else:
                result.extend(piece)
        elif not gluing:
            result.extend(piece)
    return result
