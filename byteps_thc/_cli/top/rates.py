"""What happened between two scrapes, a line for each job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from byteps_thc._cli.top.metrics import INCOMPLETE, NO_JOB, Scrape

#: Packets that were not the first of their kind, and results that were wanted again.
_REPEATED = ("thc_ps_duplicates_total", "thc_ps_replays_total")
_HEADINGS = ("packets/s", "Mb/s in", "sums/s", "repeated", "too late", "dropped", "errors/s", "slots in use", "memory")


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
        """As the table shows it; repeated, late and dropped packets as shares of those that came."""
        if self.job == NO_JOB:
            return [self.server, "none", "", f"{self.packets:,.0f}", *[""] * 4, f"{self.dropped:,.0f}/s", *[""] * 3]
        shares = (
            f"{part / self.packets:.2%}" if self.packets else "" for part in (self.repeated, self.stale, self.dropped)
        )
        figures = (f"{self.packets:,.0f}", f"{self.received_bits / 1e6:,.1f}", f"{self.sums:,.0f}")
        memory = f"{self.memory_bytes / (1 << 20):.1f} MiB"
        slots = f"{self.slots_in_use} of {self.slots}"
        return [self.server, self.job, str(self.workers), *figures, *shares, f"{self.errors:,.0f}", slots, memory]


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


def table(found: Sequence[Line], servers: Sequence[str], silent: Sequence[str] = ()) -> Table:
    """All of them. servers: that answer; silent: that do not."""
    captions = [] if found else [f"no jobs on {len(servers)} server(s)"]
    captions += [f"{server} does not answer" for server in silent]
    # Texts, in which rich looks for no markup: jobs and addresses may have brackets.
    view = Table("server", "job", "workers", caption=Text("\n".join(captions)) if captions else None)
    for heading in _HEADINGS:
        view.add_column(heading, justify="right")
    for line in found:
        view.add_row(*map(Text, line.cells()))
    return view
