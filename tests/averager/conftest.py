"""Workers as threads of the test, each with its own session and compressor, on a real thc-ps."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from byteps_thc import Compressor, GradientAverager, ServerCodes, Session
from byteps_thc._cli.launch import ParameterServer


class Team:
    """The averagers of all workers of a job, called together."""

    def __init__(self, averagers: list[GradientAverager]) -> None:
        self.averagers = averagers

    def average(self, gradients: list[dict[str, Any]], out: list[dict[str, Any]] | None = None) -> None:
        """Worker w averages gradients[w], in place or to out[w]. Raises the first worker's error."""
        with ThreadPoolExecutor(len(gradients)) as pool:
            list(pool.map(GradientAverager.average, self.averagers, gradients, out or gradients))


@pytest.fixture
def make_team(thc_ps: ParameterServer) -> Iterator[Callable[..., Team]]:
    """Joins `workers` workers to a job; rows: GradientAverager's; other keyword arguments are Session's."""
    with ExitStack() as stack:

        def make(workers: int, config: ServerCodes, *, job: int = 1, rows: Sequence[str] = (), **settings: Any) -> Team:
            return Team(
                [
                    GradientAverager(
                        stack.enter_context(
                            Session([thc_ps.address], job=job, worker=worker, workers=workers, codes=config, **settings)
                        ),
                        Compressor(config, workers=workers, worker=worker),
                        rows,
                    )
                    for worker in range(workers)
                ]
            )

        yield make


@pytest.fixture
def gradients_of() -> Callable[..., list[dict[str, Any]]]:
    """Seeded normal gradients: sizes by name, for every worker."""

    def make(workers: int, sizes: dict[str, int], seed: int = 0) -> list[dict[str, Any]]:
        rng = np.random.default_rng(seed)
        return [{name: rng.standard_normal(n, np.float32) for name, n in sizes.items()} for _ in range(workers)]

    return make
