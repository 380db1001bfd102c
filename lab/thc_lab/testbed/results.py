"""Results of a training: the demo's runs, as JSON, from the worker to the starter of the testbed."""

from collections.abc import Sequence

from pydantic import TypeAdapter
from rich.table import Table

from byteps_thc._base.errors import TransportError
from thc_lab.demo.report import results_table
from thc_lab.demo.settings import RunResult

_RESULTS = TypeAdapter(list[RunResult])


def dump(results: Sequence[RunResult]) -> str:
    """The text of the file that a plan calls its results."""
    return _RESULTS.dump_json(list(results), indent=1).decode()


def load(text: str) -> list[RunResult]:
    """Read that text; TransportError when it is none."""
    try:
        return _RESULTS.validate_json(text)
    except ValueError as error:
        raise TransportError(f"the training's results cannot be read: {error}") from error


def table(text: str) -> Table:
    """The demo's table of that text, one column per run."""
    return results_table(load(text))
