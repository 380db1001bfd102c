"""What is done on several hosts at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

_T = TypeVar("_T")


async def together(work: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Results, in this order. The first error is raised when the others, cancelled then, have ended, too.

    asyncio.gather() lets them go on: their subprocesses would outlive the event loop, and complain.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
