"""Iteration over syntax trees."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from thc_p4_model.compiler import syntax as s

_NOT_CHILDREN = frozenset({"location", "decl", "table", "assignment"})


def walk(node: Any) -> Iterator[s.Node]:
    """The node and all nodes below it."""
    if isinstance(node, s.Node):
        yield node
        for field in dataclasses.fields(node):
            if field.name not in _NOT_CHILDREN:
                yield from walk(getattr(node, field.name))
    elif isinstance(node, (list, tuple)):
        for item in node:
            yield from walk(item)
