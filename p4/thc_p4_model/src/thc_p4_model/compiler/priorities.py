"""Priorities of a table's initial entries: P4_16, 14.2.1.4, "Entry priorities"."""

from collections.abc import Callable, Sequence
from typing import Any

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler.check_types import fail

MAX_PRIORITY = (1 << 32) - 1
"""As in p4c."""

Known = Callable[[s.Expr, str], Any]
"""The value of an expression; raises P4Error, which names it by the text, if it is not known at compile time."""


def entry_priorities(table: s.TableDecl, known: Known) -> list[int]:
    """The priority of each entry of a checked table; the smallest wins, as for entries of the control plane.

    If the source lets the largest win, the entry with the largest has 1, and the others as much more as they are
    behind. The annotation `@priority(p)` is bmv2's: it sets the priority itself.
    """
    largest_wins, delta = True, 1
    for item in table.properties:
        if item.name == "largest_priority_wins":
            largest_wins = known(item.value, item.name)
        elif item.name == "priority_delta":
            delta = known(item.value, item.name)
            if delta < 1:
                fail(item, f"priority_delta must be positive, not {delta}")
    if any(entry.priority is not None for entry in table.entries):
        numbers = _given(table.entries, -delta if largest_wins else delta, known)
        if largest_wins:
            numbers = [1 + max(numbers) - number for number in numbers]
    else:
        step = 1 if table.const_entries else delta
        numbers = [1 + step * index for index in range(len(table.entries))]
    return [_annotated(entry, number) for entry, number in zip(table.entries, numbers, strict=True)]


def _given(entries: Sequence[s.Entry], step: int, known: Known) -> list[int]:
    """The priorities as the source counts them; an entry without one continues from the entry before it."""
    numbers: list[int] = []
    for entry in entries:
        number = int(known(entry.priority, "a priority")) if entry.priority is not None else numbers[-1] + step
        if not 0 <= number <= MAX_PRIORITY:
            fail(entry, f"the priority of this entry is {number}: need 0 to {MAX_PRIORITY}")
        numbers.append(number)
    return numbers


def _annotated(entry: s.Entry, priority: int) -> int:
    for note in entry.annotations:
        if note.name == "priority" and note.args and isinstance(note.args[0], int):
            return note.args[0]
    return priority
