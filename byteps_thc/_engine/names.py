"""Names of parameters: what wrappers of a model put into them, and patterns that select some of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from functools import lru_cache

#: Modules that wrap the one that they are named after.
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")
_DDP = "module."


def without_wrappers(name: str) -> str:
    """Return a module's name as it is without torch.compile and without torch's wrapper for activation checkpoints."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def matches_any(patterns: Sequence[str], name: str) -> bool:
    """Return whether a pattern selects the parameter.

    patterns: as in the shell (`*`, `?`, `[...]`, case matters), of a parameter or of a module above it: `lm_head`
    selects `lm_head.weight`. Neither patterns nor names need the parts that DDP, torch.compile and activation
    checkpoints add.
    """
    return any(_selects(pattern, name) for pattern in patterns)


def unmatched(patterns: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return the patterns that select none of the names."""
    everyone = [*names]
    return [pattern for pattern in patterns if not any(_selects(pattern, name) for name in everyone)]


def _selects(pattern: str, name: str) -> bool:
    # A model may have a module of its own that is called "module": both names are tried.
    return any(_matcher(pattern).match(candidate) for candidate in _spellings(name))


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> re.Pattern[str]:
    each = [text for spelling in _spellings(pattern) for text in (spelling, f"{spelling}.*")]
    return re.compile("|".join(map(translate, each)))


def _spellings(name: str) -> tuple[str, ...]:
    bare = without_wrappers(name)
    return tuple(dict.fromkeys((bare, bare.removeprefix(_DDP))))
