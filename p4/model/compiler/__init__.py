"""P4_16 source to Python: preprocessor, parser, type checker and code generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from p4.model.interfaces import Program

INCLUDE_DIR = Path(__file__).parent.parent / "include"
"""The model's own declarations of core.p4 and of the architectures."""


def compile_program(
    path: str | Path,
    include_dirs: Sequence[str | Path] = (),
    defines: Mapping[str, str] | None = None,
    architecture: str | None = None,
) -> Program:
    """Compile a program.

    `include_dirs` are searched before the model's own; `defines` are macros set from outside. `architecture` names the
    file the program must include, such as `v1model` or `tna`; without it any will do. Raises P4Error.
    """
    raise NotImplementedError
