"""Lexing that depends on the meaning of names.

P4's grammar is LALR(1) only if type names and other names are different tokens, and if the `<` that opens type
arguments is not the `<` of a comparison. Types are declared before use, so one pass over the tokens decides both. It
also makes one token of every annotation, whose body may be any tokens.
"""

import json
from collections.abc import Iterator

from lark import Token

_OPENING = {"LPAR", "LBRACE", "LSQB"}
_CLOSING = {"RPAR", "RBRACE", "RSQB"}
_NAMED_TYPES = {"HEADER", "STRUCT", "HEADER_UNION", "CONTROL", "PARSER", "PACKAGE"}
_BASE_TYPES = {
    "BIT",
    "INT",
    "VARBIT",
    "BOOL",
    "ERROR",
    "STRING_TYPE",
    "TUPLE",
    "LIST",
    "VOID",
    "MATCH_KIND",
    "UNDERSCORE",
}
_ALWAYS_GENERIC = {"BIT", "INT", "VARBIT", "TUPLE", "LIST", "VALUE_SET"}
_SOFT_KEYWORDS = {"ACTIONS", "APPLY", "ENTRIES", "KEY", "PRIORITY", "STATE", "TYPE"}
_EXPRESSION_ENDS = {"IDENTIFIER", "TYPE_NAME", "RPAR", "RSQB", "ERROR", "THIS", "MORETHAN", *_SOFT_KEYWORDS}
_TYPE_ENDS = {"TYPE_NAME", "MORETHAN", "RSQB", "IDENTIFIER", *_BASE_TYPES}
_ENDS_OF_DECLARATION = {"", "SEMICOLON", "RBRACE", "LBRACE", "ANNOTATION"}
_MAX_DECIMAL_DIGITS = 1024


class TypeNameLexer:
    """Lark post-lexer; one object serves one text after another."""

    always_accept = ("AT",)

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        """The tokens with TYPE_NAME, LESS_ARGS and ANNOTATION decided."""
        return iter(_Scan(_fold_annotations(list(stream))).run())


class _Scan:
    """One pass over the tokens of a program, with the scopes of type names."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._scopes: list[set[str]] = [set()]
        self._nesting: list[bool] = []
        """Per open bracket: whether closing it closes a scope."""
        self._depth_of_declarations: list[int] = []
        """Nesting depths at which a declaration with type parameters is open: its `;` or `}` closes a scope."""

    def run(self) -> list[Token]:
        tokens = self._tokens
        previous = ""
        for index, token in enumerate(tokens):
            kind = token.type
            if kind in _OPENING:
                self._open(kind)
            elif kind in _CLOSING:
                self._close(kind)
            elif kind == "SEMICOLON":
                self._end_declaration()
            elif kind == "DECLARED":
                token.type = "IDENTIFIER"
            elif kind == "IDENTIFIER":
                if self._is_type(token) and not self._is_member(index):
                    token.type = "TYPE_NAME"
            elif kind == "LESSTHAN" and self._opens_type_arguments(index):
                token.type = "LESS_ARGS"
            if kind in _NAMED_TYPES or kind in ("ENUM", "EXTERN", "TYPEDEF", "TYPE"):
                self._declaration(index, previous)
            elif token.type in ("IDENTIFIER", "TYPE_NAME") and self._is_generic_prototype(index, previous):
                self._type_params(index + 1)
            previous = token.type
        return tokens

    def _is_type(self, name: str) -> bool:
        return any(name in scope for scope in self._scopes)

    def _is_member(self, index: int) -> bool:
        """Whether the name is a member, and not after the leading dot of a global name."""
        if index < 2 or self._tokens[index - 1].type != "DOT":
            return False
        before = self._tokens[index - 2].type
        return before in _EXPRESSION_ENDS

    def _open(self, kind: str) -> None:
        scoped = kind == "LBRACE"
        self._nesting.append(scoped)
        if scoped:
            self._scopes.append(set())

    def _close(self, kind: str) -> None:
        if self._nesting and self._nesting.pop():
            self._scopes.pop()
        if kind == "RBRACE":
            self._end_declaration()

    def _end_declaration(self) -> None:
        while self._depth_of_declarations and self._depth_of_declarations[-1] >= len(self._nesting):
            self._depth_of_declarations.pop()
            self._scopes.pop()

    def _declaration(self, index: int, previous: str) -> None:
        """Note the type that the declaration starting at `index` introduces, and its type parameters."""
        kind = self._tokens[index].type
        if kind == "TYPE" and previous not in _ENDS_OF_DECLARATION:
            return
        if kind in ("TYPEDEF", "TYPE"):
            name = self._last_name_before(index + 1, ("SEMICOLON",))
        elif kind == "ENUM":
            name = self._last_name_before(index + 1, ("LBRACE",))
        else:
            name = index + 1
        if name >= len(self._tokens) or not self._is_name(name):
            return
        after = self._skip_type_params(name + 1)
        if kind == "EXTERN" and self._kind(after) not in ("LBRACE", "SEMICOLON"):
            return
        self._scopes[-1].add(str(self._tokens[name]))
        self._tokens[name].type = "DECLARED"
        if after > name + 1:
            self._type_params(name + 1)

    def _last_name_before(self, index: int, ends: tuple[str, ...]) -> int:
        while index < len(self._tokens) and self._tokens[index].type not in ends:
            index += 1
        return index - 1

    def _is_name(self, index: int) -> bool:
        return self._kind(index) in ("IDENTIFIER", "TYPE_NAME") or self._kind(index) in _SOFT_KEYWORDS

    def _kind(self, index: int) -> str:
        return self._tokens[index].type if index < len(self._tokens) else ""

    def _skip_type_params(self, index: int) -> int:
        """The index after `<A, B>` at `index`; `index` itself without such a list."""
        if self._kind(index) not in ("LESSTHAN", "LESS_ARGS"):
            return index
        end = index + 1
        while self._is_name(end) and self._kind(end + 1) == "COMMA":
            end += 2
        return end + 2 if self._is_name(end) and self._kind(end + 1) in ("MORETHAN", "GREATER_SHIFT") else index

    def _type_params(self, index: int) -> None:
        """Open the scope of a declaration with the type parameters at `index`."""
        end = self._skip_type_params(index)
        self._tokens[index].type = "LESS_ARGS"
        self._scopes.append({str(token) for token in self._tokens[index + 1 : end - 1] if token.type != "COMMA"})
        self._depth_of_declarations.append(len(self._nesting))
        result = self._tokens[index - 2]
        if result.type == "IDENTIFIER" and str(result) in self._scopes[-1]:
            result.type = "TYPE_NAME"

    def _is_generic_prototype(self, index: int, previous: str) -> bool:
        """Whether a generic function or method is declared with the name at `index`: `T name<T>(`."""
        if previous not in _TYPE_ENDS or self._kind(index + 1) != "LESSTHAN":
            return False
        end = self._skip_type_params(index + 1)
        return end > index + 1 and self._kind(end) == "LPAR"

    def _opens_type_arguments(self, index: int) -> bool:
        previous = self._kind(index - 1)
        if previous in _ALWAYS_GENERIC:
            return True
        if previous not in ("IDENTIFIER", "TYPE_NAME", "DECLARED") and previous not in _SOFT_KEYWORDS:
            return False
        following = self._kind(index + 1)
        if previous == "TYPE_NAME" or following == "VOID":
            return True
        if self._kind(index + 2) == "DOT":
            return False
        return following in _BASE_TYPES or (following == "IDENTIFIER" and self._is_type(self._tokens[index + 1]))


def _fold_annotations(tokens: list[Token]) -> list[Token]:
    """Make one token of each `@name(...)` or `@name[...]`: its text is JSON, the name and the list of arguments."""
    result: list[Token] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        index += 1
        if token.type != "AT" or index == len(tokens):
            result.append(token)
            continue
        name = str(tokens[index])
        index += 1
        args: list[int | str] = []
        if index < len(tokens) and tokens[index].type in ("LPAR", "LSQB"):
            index, args = _annotation_args(tokens, index)
        result.append(Token.new_borrow_pos("ANNOTATION", json.dumps([name, args]), token))
    return result


def _annotation_args(tokens: list[Token], index: int) -> tuple[int, list[int | str]]:
    """The arguments in the brackets at `index`, without commas, and the index after them."""
    depth = 0
    args: list[int | str] = []
    while index < len(tokens):
        token = tokens[index]
        index += 1
        if token.type in _OPENING:
            depth += 1
            if depth == 1:
                continue
        elif token.type in _CLOSING:
            depth -= 1
            if depth == 0:
                break
        if token.type == "STRING":
            args.append(str(token)[1:-1])
        elif token.type == "INTEGER":
            args.append(integer_literal(token)[0])
        elif token.type != "COMMA":
            args.append(str(token))
    return index, args


def integer_literal(text: str) -> tuple[int, int | None, bool]:
    """Value, width (None without prefix) and signedness of a literal such as `8w0xff`."""
    text = text.replace("_", "").replace(" ", "")
    width: int | None = None
    signed = False
    for position, character in enumerate(text):
        if character in "ws" and text[:position].isdigit():
            width, signed, text = _decimal(text[:position]), character == "s", text[position + 1 :]
            break
    prefix = text[:2].lower()
    if prefix == "0d":
        return _decimal(text[2:]), width, signed
    if prefix in ("0x", "0b", "0o"):
        return int(text, 0), width, signed
    return _decimal(text), width, signed


def _decimal(text: str) -> int:
    """A number in decimal; of one with more digits than any constant may have, only the first: too large all the same.

    Python refuses to convert more than 4300 digits.
    """
    return int(text[:_MAX_DECIMAL_DIGITS])
