"""Servers and workers for tests of thc-ps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from raw_worker import Worker

from byteps_thc.tools.launch import ParameterServer

MakeWorker = Callable[..., Worker]


@pytest.fixture
def make_worker() -> Iterator[MakeWorker]:
    workers: list[Worker] = []

    def make(*args: object, **options: object) -> Worker:
        workers.append(Worker(*args, **options))  # type: ignore[arg-type]
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


@pytest.fixture
def server() -> Iterator[ParameterServer]:
    with ParameterServer() as running:
        yield running
