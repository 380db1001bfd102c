"""P4 source text to syntax tree."""

import functools
import re
from pathlib import Path

from lark import Lark, UnexpectedCharacters, UnexpectedToken

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler.lexer import TypeNameLexer
from thc_p4_model.compiler.preprocessor import SourceText
from thc_p4_model.compiler.tree_declarations import DeclarationBuilder
from thc_p4_model.compiler.unsupported import refusal
from thc_p4_model.interfaces import P4Error

_GRAMMAR = Path(__file__).with_name("grammar.lark")
_LAST_NAME = re.compile(r"(\w+)\s*\Z")


@functools.cache
def _lark() -> Lark:
    return Lark(
        _GRAMMAR.read_text(encoding="utf-8"),
        parser="lalr",
        lexer="basic",
        postlex=TypeNameLexer(),
        propagate_positions=True,
    )


def parse(source: SourceText) -> s.Program:
    """The syntax tree of a program. Raises P4Error."""
    try:
        tree = _lark().parse(source.text)
    except UnexpectedCharacters as error:
        position = error.pos_in_stream or 0
        text = source.text[position : position + 1]
        raise P4Error(source.origin(error.line), f"unexpected character {text!r}") from None
    except UnexpectedToken as error:
        raise P4Error(source.origin(error.line), _syntax_error(error, source.text)) from None
    program: s.Program = DeclarationBuilder(source).build(tree)
    return program


def _syntax_error(error: UnexpectedToken, text: str) -> str:
    token = error.token
    if token.type == "$END":
        return "syntax error: the file ends inside a declaration"
    before = _LAST_NAME.search(text, 0, token.start_pos)  # `name_of_no_type variable;` among statements
    for name in (str(token), before[1] if before else ""):
        refused = refusal(name)
        if refused:
            return refused
    kind = " (a type)" if token.type == "TYPE_NAME" else ""
    if token.type == "IDENTIFIER" and "TYPE_NAME" in error.expected:
        kind = ": no type of this name is declared before"
    return f"syntax error at {str(token)!r}{kind}"
