"""`thc tables`: choose and show lookup tables."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from byteps_thc._cli.consoles import table_console
from byteps_thc._cli.lazy_commands import LazyCommands
from byteps_thc._cli.tables.points_report import print_points
from byteps_thc._scheme.config import ResolvedConfig, ThcConfig
from byteps_thc._scheme.errors import ThcError
from byteps_thc._scheme.limits import require_packet_workers
from byteps_thc._scheme.rank_settings import DEFAULT_BITS, RankSettings
from byteps_thc._scheme.rounding import RoundingMode
from byteps_thc._scheme.tables import store
from byteps_thc._scheme.tables.lookup_table import PAPER_BITS, PAPER_GRANULARITY, LookupTable
from byteps_thc._scheme.tables.selection import expected_error
from byteps_thc._scheme.wire.layout import MAX_WORKERS

app = typer.Typer(
    cls=LazyCommands,
    help="Lookup tables: from codes to the integers that servers add. Points that ranks round to.",
    no_args_is_help=True,
)

Bits = Annotated[int, typer.Option("--bits", "-b", help="Bits of a code: 1 to 8.")]
ClampFraction = Annotated[str, typer.Option("--p", "-p", help="Fraction of the coordinates that is clamped, as 1/32.")]
Rounding = Annotated[RoundingMode, typer.Option(help="Whether the workers' random bits belong together.")]


@app.command()
def auto(
    workers: Annotated[int, typer.Option("--workers", "-n", help="Workers or ranks that average.")],
    bits: Annotated[
        int | None,
        typer.Option("--bits", "-b", help="Bits of a code: 1 to 8.", show_default=f"4; among ranks {DEFAULT_BITS}"),
    ] = None,
    down_bits: Annotated[
        int | None, typer.Option(help="Among ranks: bits of a code of the average.", show_default="--bits")
    ] = None,
    value_bits: Annotated[
        Literal["8", "16", "auto"] | None,
        typer.Option(
            help="Bits of a coordinate of the aggregate; auto: 8 when the sums of codes fit, else 16.",
            show_default="auto",
        ),
    ] = None,
    error_feedback: Annotated[
        bool | None,
        typer.Option(
            "--error-feedback/--no-error-feedback",
            help="Whether lost parts are sent later.",
            show_default="no-error-feedback",
        ),
    ] = None,
    rounding: Annotated[
        RoundingMode | None,
        typer.Option(help="Whether the workers' random bits belong together.", show_default="stratified"),
    ] = None,
    engine: Annotated[
        Literal["collective", "network"] | None,
        typer.Option(
            help="Who averages. collective: the ranks, which round to points; network: servers or a switch, which add "
            "values of a table.",
            show_default=f"network for up to {MAX_WORKERS} workers, collective above",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the table as JSON, like a line of the files of tables/.")
    ] = False,
) -> None:
    """Choose granularity and clamp for a number of workers, or show what ranks round to."""
    among_ranks = engine == "collective" or (engine is None and workers > MAX_WORKERS)
    options: dict[str, Any] = {
        "bits": bits,
        "down_bits": down_bits,
        "value_bits": int(value_bits) if value_bits in ("8", "16") else value_bits,
        "error_feedback": error_feedback,
        "rounding": rounding,
    }
    try:
        config = ThcConfig(**{name: value for name, value in options.items() if value is not None})
        if among_ranks:
            print_points(RankSettings.of(config, workers), as_json=json)
            return
        require_packet_workers(workers)
        if down_bits is not None:
            raise typer.BadParameter(
                "--down-bits is for --engine collective alone: omit it, servers and switches send sums"
            )
        resolved = config.resolve(workers)
    except ThcError as error:
        raise _usage(error) from error
    _print(resolved.table, json, workers, config.rounding)
    if not json:
        most = min(resolved.table.max_workers(resolved.value_bits), MAX_WORKERS)
        table_console().print(
            f"criterion {resolved.expected_error():.4e}; good for up to {most} workers with "
            f"{resolved.value_bits}-bit sums"
        )
        _print_levels_left(resolved)


@app.command("list")
def list_tables(
    bits: Annotated[int | None, typer.Option("--bits", "-b", help="Only tables with codes of that many bits.")] = None,
) -> None:
    """List the tables that are installed; thc tables show has all there is to know of one."""
    # Rows of 4-bit tables fit 80 columns.
    output = Table("b", "g", "p", "cost", "workers", "values", box=None, pad_edge=False)
    for table in (table for width in store.GRID_BITS if bits in (None, width) for table in store.committed(width)):
        cells = (f"{table.bits}", f"{table.granularity}", f"1/{1 / table.p:g}", f"{table.cost:.2e}")
        output.add_row(*cells, f"{table.max_workers(8)}", " ".join(map(str, table.values)))
    if not output.row_count:
        raise typer.BadParameter("--bits must be 2, 3, 4 or 5: thc tables show computes other tables")
    table_console().print(output)
    table_console().print("b: bits; g: granularity; p: fraction clamped; workers: most that 8-bit sums take")


@app.command()
def show(
    bits: Bits = PAPER_BITS,
    granularity: Annotated[
        int | None,
        typer.Option("--granularity", "-g", help="Largest table value; 30, or 2^bits - 1 if more, unless given."),
    ] = None,
    p: ClampFraction = "1/32",
    workers: Annotated[int, typer.Option("--workers", "-n", help="Workers whose average's error is shown.", min=1)] = 4,
    rounding: Rounding = "stratified",
) -> None:
    """Show a table, and what it errs by."""
    try:
        table = LookupTable.solve(bits, granularity or max(PAPER_GRANULARITY, (1 << bits) - 1), _parse_fraction(p))
    except ThcError as error:
        raise _usage(error) from error
    _print(table, as_json=False, workers=workers, rounding=rounding)


def _parse_fraction(text: str) -> float:
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError) as error:
        raise typer.BadParameter(f"p must be a number or fraction such as 1/32, not {text!r}") from error


def _print_levels_left(resolved: ResolvedConfig) -> None:
    """What 8-bit sums cost where they are, or would be, too few for all codes: a switch has no others."""
    workers, config = resolved.workers, resolved.config
    smallest = (1 << config.code_bits) - 1
    if workers * smallest < 1 << 8 or config.value_bits == 16:
        return
    most = 255 // smallest
    full = config.model_copy(update={"value_bits": 8}).resolve(most).table
    narrow = config.model_copy(update={"value_bits": 8}).resolve(workers).table
    wide = config.model_copy(update={"value_bits": 16}).resolve(workers).table
    narrow_error, wide_error, full_error = (
        f"{_first_step_error(table, number, resolved):.4e}"
        for table, number in ((narrow, workers), (wide, workers), (full, most))
    )
    table_console().print(
        f"8-bit sums (a switch has no others) leave {workers} workers {narrow.levels} of {1 << narrow.bits} levels: "
        f"NMSE {narrow_error}; {wide_error} with 16-bit sums, and {full_error} with {most} workers, the most with all"
    )


def _first_step_error(table: LookupTable, workers: int, resolved: ResolvedConfig) -> float:
    """The error of one average, nothing being returned: the criterion without error feedback is just that."""
    rounding = resolved.config.rounding
    if resolved.error_feedback:
        return table.average_cost(workers, rounding) + table.clamp_cost
    return expected_error(table, workers, False, rounding)


def _usage(error: Exception) -> typer.BadParameter:
    return typer.BadParameter(str(error))


def _print(table: LookupTable, as_json: bool, workers: int = 1, rounding: RoundingMode = "stratified") -> None:
    if as_json:
        typer.echo(store.to_json(table), nl=False)
        return
    output = Table(show_header=False)
    output.add_row("bits", str(table.bits))
    output.add_row("granularity", str(table.granularity))
    output.add_row("p", f"1/{1 / table.p:g}")
    output.add_row("cost", f"{table.cost:.4e}")
    output.add_row("clamp cost", f"{table.clamp_cost:.4e}")
    output.add_row("workers (8 bit)", str(table.max_workers(8)))
    output.add_row("values", " ".join(map(str, table.values)))
    output.add_row("NMSE, one worker", f"{table.cost + table.clamp_cost:.4e}")
    if workers > 1:
        error = table.average_cost(workers, rounding) + table.clamp_cost
        output.add_row(f"NMSE, average of {workers}", f"{error:.4e} ({rounding} rounding, independent gradients)")
    output.add_row("threshold", f"{table.threshold:.4f} norms")
    output.add_row("hash", f"{table.hash:016x}")
    table_console().print(output)
