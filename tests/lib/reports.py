"""Fixtures: the reports of ranks, which are launched once for all tests of a module."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import pytest

from byteps_thc._cli.launch import ParameterServer
from thc_lab.ranks import run_ranks

#: By rank.
Reports = list[dict[str, Any]]


def reports_of(
    program: Path,
    ranks: int,
    *,
    server: bool = False,
    settings: dict[str, Any] | None = None,
    scope: Literal["module", "session"] = "module",
    **options: Any,
) -> Any:
    """Return a fixture for a name of a test module.

    server: whether to run a thc-ps, whose address is in the program's settings, in "servers".
    options: of run_ranks().
    """

    @pytest.fixture(scope=scope)
    def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
        with ExitStack() as stack:
            servers = [stack.enter_context(ParameterServer()).address] if server else []
            own = {"servers": servers} | (settings or {})
            return run_ranks(program, ranks, tmp_path_factory.mktemp(program.stem), settings=own, **options)

    return reports
