"""P4_16 source to Python: preprocessor, parser, type checker and code generator."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler.checker import check
from thc_p4_model.compiler.codegen import generate
from thc_p4_model.compiler.parser import parse
from thc_p4_model.compiler.preprocessor import Preprocessor
from thc_p4_model.compiler.program import CompiledProgram
from thc_p4_model.interfaces import Location, P4Error

INCLUDE_DIR = Path(__file__).parent.parent / "include"
"""The model's own declarations of core.p4 and of the architectures."""

RECURSION_LIMIT = 10_000


def compile_program(
    path: str | Path,
    include_dirs: Sequence[str | Path] = (),
    defines: Mapping[str, str] | None = None,
    architecture: str | None = None,
) -> CompiledProgram:
    """Compile a program.

    `include_dirs` are searched before the model's own; `defines` are macros set from outside. `architecture` names the
    file the program must include, such as `v1model` or `tna`; without it any will do. Raises P4Error.
    """
    source = Preprocessor([*map(Path, include_dirs), INCLUDE_DIR], defines or {}).run(Path(path))
    if architecture is not None and f"{architecture}.p4" not in source.files:
        raise P4Error(Location(str(path), 1), f"the program does not include {architecture}.p4")
    with _deep_recursion():
        try:
            return generate(check(parse(source)), str(path))
        except RecursionError as error:
            raise P4Error(_deepest(error) or Location(str(path), 1), "the program is nested too deeply here") from None


def _deepest(error: RecursionError) -> Location | None:
    """The compiler's place in the program."""
    for frame, _line in reversed(list(walk_tb(error.__traceback__))):
        for value in frame.f_locals.values():
            if isinstance(value, s.Node | Location):
                return value.location if isinstance(value, s.Node) else value
    return None


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """Long chains of operators and of `else if` are deep trees; the limit is Python's own frames, not the C stack."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, RECURSION_LIMIT))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
