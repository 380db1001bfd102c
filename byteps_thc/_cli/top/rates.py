"""What happened between two scrapes, a line for each job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.table import Table
from rich.text import Text

from byteps_thc._cli.top.metrics import INCOMPLETE, NO_JOB, Scrape

#: Packets that were not the first of their kind, and results that were wanted again.
_REPEATED = ("thc_ps_duplicates_total", "thc_ps_replays_total")
#: Heading and width of each column: 79 columns with the spaces between them.
_COLUMNS = (
    ("job", 5),
    ("workers", 7),
    ("packets\n/s", 7),
    ("Mb/s\nin", 5),
    ("sums\n/s", 5),
    ("repeated", 8),
    ("too\nlate", 6),
    ("dropped", 7),
    ("errors\n/s", 6),
    ("slots\nin use", 6),
    ("memory\n(MiB)", 7),
)


@dataclass(frozen=True)
class Line:
    """One job of one server; rates are per second. job: NO_JOB for packets that are of none."""

    server: str
    job: str
    workers: int
    packets: float
    received_bits: float
    sums: float
    repeated: float
    stale: float
    dropped: float
    errors: float
    slots_in_use: int
    slots: int
    memory_bytes: int

    def cells(self) -> list[str]:
        """Return the row of the table: repeated, late and dropped packets as shares of those that came, slots in use
        as a share of all.
        """
        if self.job == NO_JOB:
            return ["none", "", short(self.packets), *[""] * 4, f"{short(self.dropped)}/s", *[""] * 3]
        parts = (self.repeated, self.stale, self.dropped)
        shares = (f"{part / self.packets:.1%}" if self.packets else "" for part in parts)
        figures = (short(self.packets), short(self.received_bits / 1e6), short(self.sums))
        slots = f"{self.slots_in_use / self.slots:.0%}" if self.slots else ""
        memory = short(self.memory_bytes / (1 << 20))
        return [self.job, str(self.workers), *figures, *shares, short(self.errors), slots, memory]


def short(number: float) -> str:
    """Write a number in at most five characters: 0.3, 12, 9,999, 12.3k, 4.5M."""
    if 0.05 <= number < 9.95:
        return f"{number:.1f}"
    if number < 9_999.5:
        return f"{number:,.0f}"
    thousands, unit = (number / 1e3, "k") if number < 999_500 else (number / 1e6, "M")
    return f"{thousands:.1f}{unit}" if thousands < 99.95 else f"{thousands:.0f}{unit}"


def lines(server: str, before: Scrape | None, after: Scrape) -> Iterator[Line]:
    """Jobs by number, then what belongs to none where such packets came. before: None when it did not answer then."""
    before = before or after
    elapsed_s = max(after.seconds - before.seconds, 1e-9)
    for job in (*after.jobs, NO_JOB):

        def rate(*metrics: str, job: str = job) -> float:
            # A counter that went back is of a server that was started again.
            return sum(max(after.get(metric, job) - before.get(metric, job), 0.0) for metric in metrics) / elapsed_s

        line = Line(
            server,
            job,
            int(after.get("thc_ps_workers", job)),
            packets=rate("thc_ps_packets_total"),
            received_bits=8 * rate("thc_ps_bytes_total"),
            sums=rate("thc_ps_completed_total"),
            repeated=rate(*_REPEATED),
            stale=rate("thc_ps_stale_total"),
            dropped=rate("thc_ps_dropped_packets_total"),
            errors=rate("thc_ps_errors_sent_total") - rate(INCOMPLETE),
            slots_in_use=int(after.get("thc_ps_slots_in_use", job)),
            slots=int(after.get("thc_ps_slots", job)),
            memory_bytes=int(after.get("thc_ps_slot_memory_bytes", job)),
        )
        if job != NO_JOB or line.packets or line.dropped:
            yield line


def view(found: Sequence[Line], servers: Sequence[str], silent: Sequence[str] = ()) -> Group:
    """Return a table of jobs per server, headings above the first. servers: that answer; silent: that do not."""
    shown: list[Table | Text] = []
    # Texts, in which rich looks for no markup: jobs and addresses may have brackets.
    for server in dict.fromkeys(line.server for line in found):
        rows = Table(box=None, show_header=not shown, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left")
        for heading, width in _COLUMNS:
            rows.add_column(heading, justify="right", min_width=width, no_wrap=True, overflow="ellipsis")
        for line in found:
            if line.server == server:
                rows.add_row(*map(Text, line.cells()))
        rows.title = Text(server)
        shown.append(rows)
    if not found:
        shown.append(Text(f"no jobs on {len(servers)} server(s)"))
    shown += [Text(f"{server} does not answer") for server in silent]
    return Group(*shown)
