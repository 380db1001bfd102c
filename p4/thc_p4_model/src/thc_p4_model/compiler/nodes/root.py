"""The root of the syntax tree's classes, and annotations."""

from dataclasses import dataclass
from typing import Any

from thc_p4_model.interfaces import Location


@dataclass(eq=False)
class Node:
    """A node of the tree."""

    location: Location


@dataclass(eq=False)
class Annotation(Node):
    """`@name(args)`; args are literals, other tokens as text."""

    name: str
    args: tuple[Any, ...]
