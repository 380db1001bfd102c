"""`thc tables`: solve, choose, list and show lookup tables."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal, cast

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from byteps_thc.compressor import SCALE_BITS, SCALE_GROUP
from byteps_thc.config import DEFAULT_TOTAL_BITS, DownBits, ResolvedConfig, ThcConfig
from byteps_thc.config import Bits as CodeBits
from byteps_thc.errors import ThcError
from byteps_thc.rounding import RoundingMode
from byteps_thc.tables import chart, store
from byteps_thc.tables.lookup_table import PAPER_BITS, PAPER_GRANULARITY, LookupTable
from byteps_thc.tables.selection import bit_pairs, candidates, expected_error
from byteps_thc.tables.selection import total_bits as total_bits_of
from byteps_thc.tools.consoles import table_console
from byteps_thc.wire.layout import MAX_WORKERS
from byteps_thc.worker_limits import MAX_RANKS, require_packet_workers

app = typer.Typer(help="Lookup tables: from codes to the integers that are added.", no_args_is_help=True)

Bits = Annotated[int, typer.Option("--bits", "-b", help="Bits of a code: 1 to 8.")]
Granularity = Annotated[
    int, typer.Option("--granularity", "-g", help="Largest table value; below 2^bits - 1 codes are left over.")
]
ClampFraction = Annotated[str, typer.Option("--p", "-p", help="Fraction of the coordinates that is clamped, as 1/32.")]
Rounding = Annotated[RoundingMode, typer.Option(help="Whether the workers' random bits belong together.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the table as JSON, like a line of the files of tables/.")]


@app.command()
def solve(
    bits: Bits = PAPER_BITS,
    granularity: Granularity = PAPER_GRANULARITY,
    p: ClampFraction = "1/32",
    json: AsJson = False,
) -> None:
    """Compute the optimal table of one granularity and clamp (the paper's by default)."""
    _print(_solved(bits, granularity, p), json)


@app.command()
def auto(
    workers: Annotated[int, typer.Option("--workers", "-n", help="Workers whose table values are added.")],
    bits: Annotated[
        int | None,
        typer.Option("--bits", "-b", help="Bits of a code: 1 to 8.", show_default="4, or as --total-bits says"),
    ] = None,
    down_bits: Annotated[
        int | None, typer.Option(help="Among ranks: bits that the owner of a sum requantizes it to, 4 to 8.")
    ] = None,
    total_bits: Annotated[
        int | None,
        typer.Option(
            help="Among ranks: --bits and --down-bits together, 8 to 16; the pair of least error is taken.",
            show_default=f"{DEFAULT_TOTAL_BITS}, unless other bits are given",
        ),
    ] = None,
    value_bits: Annotated[
        Literal["8", "16", "auto"],
        typer.Option(help="Bits of a coordinate of the aggregate; auto: 8 when the sums of codes fit, else 16."),
    ] = "auto",
    error_feedback: Annotated[bool, typer.Option(help="Whether lost parts are sent later.")] = False,
    rounding: Rounding = "stratified",
    engine: Annotated[
        Literal["collective", "network"] | None,
        typer.Option(
            help="Who sums. collective: the ranks, in the bits that sums need; network: servers or a switch, 8 or 16.",
            show_default=f"network for up to {MAX_WORKERS} workers, collective above",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Choose granularity and clamp for a number of workers."""
    packed_sums = engine == "collective" or (engine is None and workers > MAX_WORKERS)
    try:
        if not packed_sums:
            require_packet_workers(workers)
            if down_bits is not None or total_bits is not None:
                raise typer.BadParameter("servers and switches requantize no sums: --engine collective does")
        config = ThcConfig(
            bits="auto" if bits is None else cast(CodeBits, bits),  # ThcConfig checks it
            down_bits="auto" if down_bits is None else cast(DownBits, down_bits),
            total_bits=total_bits,
            value_bits="auto" if value_bits == "auto" else 16 if value_bits == "16" else 8,
            error_feedback=error_feedback,
            rounding=rounding,
        )
        resolved = config.resolve(workers, packed_sums=packed_sums)
    except ThcError as error:
        raise _usage(error) from error
    table = resolved.table
    _print(table, json, workers, rounding, resolved.down)
    if not json:
        if resolved.down is not None:
            _print_pairs(config, resolved)
        elif packed_sums:
            others = candidates(table.bits, workers, resolved.value_bits, error_feedback)
            _print_widths(
                table, {other: expected_error(other, workers, error_feedback, rounding) for other in others}, workers
            )
        error_expected = resolved.expected_error()
        value_bits_chosen = resolved.value_bits if resolved.down is None else 16  # those that do not travel
        most = min(table.max_workers(value_bits_chosen), MAX_RANKS if packed_sums else MAX_WORKERS)
        table_console().print(
            f"criterion {error_expected:.4e}; good for up to {most} workers with {value_bits_chosen}-bit sums"
        )
        if not packed_sums:
            _print_levels_left(resolved)


@app.command("list")
def list_tables(
    bits: Annotated[int | None, typer.Option("--bits", "-b", help="Only tables with codes of that many bits.")] = None,
    p: Annotated[str | None, typer.Option("--p", "-p", help="Only tables with that clamp, as 1/32.")] = None,
) -> None:
    """List the committed tables; thc tables show has all there is to know of one."""
    # Rows of 4-bit tables fit 80 columns.
    output = Table(
        "b",
        "g",
        "p",
        "cost",
        "workers",
        "values",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    wanted = None if p is None else _parse_fraction(p)
    for code_bits in store.GRID_BITS if bits is None else [bits]:
        for table in store.committed(code_bits):
            if wanted in (None, table.p):
                bits_cell, granularity, p_cell, _, _, workers, values = _cells(table)
                output.add_row(bits_cell, granularity, p_cell, f"{table.cost:.2e}", workers, values)
    if not output.row_count:
        raise typer.BadParameter("no committed table has these parameters; thc tables solve computes one")
    console = table_console()
    console.print(output)
    console.print("b: bits; g: granularity; p: fraction clamped; workers: most that 8-bit sums take")


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
    png: Annotated[Path | None, typer.Option(help="Also write the chart to this file (needs matplotlib).")] = None,
) -> None:
    """Draw the quantization values of a table over the normal density."""
    table = _solved(bits, granularity or max(PAPER_GRANULARITY, (1 << bits) - 1), p)
    _print(table, as_json=False, workers=workers, rounding=rounding)
    console = Console()
    console.print(
        escape(chart.terminal_chart(table, width=min(max(console.width, 40), 100))), highlight=False, no_wrap=True
    )
    if png is not None:
        try:
            chart.save_png(table, png)
        except (ThcError, OSError, ValueError) as error:
            raise _usage(error) from error
        console.print(f"wrote {escape(str(png))}", soft_wrap=True)


def _solved(bits: int, granularity: int, p: str) -> LookupTable:
    try:
        return LookupTable.solve(bits, granularity, _parse_fraction(p))
    except ThcError as error:
        raise _usage(error) from error


def _parse_fraction(text: str) -> float:
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError) as error:
        raise typer.BadParameter(f"p must be a number or fraction such as 1/32, not {text!r}") from error


def _print_widths(chosen: LookupTable, criteria: Mapping[LookupTable, float], workers: int) -> None:
    """The best table for every width of a packed sum, and which of them was chosen."""
    output = Table("bits up + down", "granularity", "p", "criterion", "")
    for width in sorted({total_bits_of(table, workers) for table in criteria}):
        same = {table: value for table, value in criteria.items() if total_bits_of(table, workers) == width}
        best = min(same, key=lambda table: same[table])
        row = (f"{best.bits} + {width - best.bits}", str(best.granularity), f"1/{1 / best.p:g}", f"{same[best]:.4e}")
        output.add_row(*row, "chosen" if best == chosen else "")
    table_console().print(output)


def _print_pairs(config: ThcConfig, chosen: ResolvedConfig) -> None:
    """What bits there were to choose from, both ways, and which of them were chosen."""
    assert chosen.down is not None
    total = chosen.table.bits + chosen.down.bits
    output = Table("bits up + down", "granularity", "p", "criterion", "")
    for pair in bit_pairs(total) if config.chosen_total_bits else [(chosen.table.bits, chosen.down.bits)]:
        bits, down_bits = pair
        update = {"bits": bits, "down_bits": down_bits, "total_bits": None}
        other = config.model_copy(update=update).resolve(chosen.workers, packed_sums=True)
        table = other.table
        row = (f"{bits} + {down_bits}", str(table.granularity), f"1/{1 / table.p:g}", f"{other.expected_error():.4e}")
        output.add_row(*row, "chosen" if table == chosen.table else "")
    table_console().print(output)
    table_console().print(
        f"sums are requantized to {chosen.down.bits} bits, with a scale of {SCALE_BITS} bits for {SCALE_GROUP} of them"
    )


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


def _cells(table: LookupTable) -> list[str]:
    return [
        str(table.bits),
        str(table.granularity),
        f"1/{1 / table.p:g}",
        f"{table.cost:.4e}",
        f"{table.clamp_cost:.4e}",
        str(table.max_workers(8)),
        " ".join(map(str, table.values)),
    ]


def _print(
    table: LookupTable,
    as_json: bool,
    workers: int = 1,
    rounding: RoundingMode = "stratified",
    down: LookupTable | None = None,
) -> None:
    """down: what the sums are requantized with, which the average errs by, too."""
    if as_json:
        typer.echo(store.to_json(table), nl=False)
        return
    output = Table(show_header=False)
    names = ("bits", "granularity", "p", "cost", "clamp cost", "workers (8 bit)", "values")
    for name, cell in zip(names, _cells(table), strict=True):
        output.add_row(name, cell)
    output.add_row("NMSE, one worker", f"{table.cost + table.clamp_cost:.4e}")
    if workers > 1:
        error = table.average_cost(workers, rounding) + table.clamp_cost + (0 if down is None else down.cost)
        output.add_row(f"NMSE, average of {workers}", f"{error:.4e} ({rounding} rounding, independent gradients)")
    output.add_row("threshold", f"{table.threshold:.4f} norms")
    output.add_row("hash", f"{table.hash:016x}")
    table_console().print(output)
