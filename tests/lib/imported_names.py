"""The imports of a Python file, read from its text."""

import ast
from collections.abc import Iterator
from pathlib import Path


def imported(file: Path, name: str) -> Iterator[str]:
    """Yield the names that a module imports anywhere in its text."""
    package = name if file.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
