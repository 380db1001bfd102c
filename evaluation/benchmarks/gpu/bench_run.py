"""Ten minutes on a GPU: bits first, then all costs. Part of make bench-gpu.

    python evaluation/benchmarks/gpu/bench_run.py [--folder build/bench/gpu] [--only WORD] [--budget-s 600] [--stand-in]

Every part is a program with a time limit of its own: one that fails, or is not over in time, is a row of the report,
and the next one begins. Parts that compare bits measure no time, and wait for imports and compilers: they run at once.
report.json and report.md are written anew after every part. --stand-in: on the CPU, in Triton's interpreter, with tiny
sizes, one part after the other, to see that parts run; some need minutes there.
"""

import argparse
import contextlib
import datetime
import itertools
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
_TAIL_LINES = 40
_POLL_S = 0.05
#: Folders that a program of this repository imports from, by its own top-level folder.
_SEARCHED = {
    "evaluation": ("evaluation/benchmarks/gpu", "evaluation/benchmarks", "evaluation"),
    "tests": ("tests/gpu", "tests/lib"),
}


@dataclass(frozen=True)
class Part:
    """command: a program of ROOT and its options. limit_s: of its time. table: it writes one to --json.

    stand_in: options that let it run without a GPU; None: it needs one. tool: a program that must be on PATH, before
    the command. beside: it measures no time, and runs at once with its neighbours that do not either.
    """

    name: str
    command: str
    limit_s: float
    table: bool = False
    stand_in: str | None = ""
    tool: str = ""
    beside: bool = False


#: A kernel takes one to three seconds to compile, and kernel_bits.py has some 150.
_KERNEL_PROCESSES = 4
_BITS_LIMIT_S = 90

#: The most valuable first, should the time be over.
PARTS = (
    Part("floor of host calls", "evaluation/benchmarks/gpu/floor.py", 45, table=True, stand_in="--stand-in"),
    *(
        Part(f"bits of the kernels, {part + 1} of {_KERNEL_PROCESSES}",
             f"tests/gpu/kernel_bits.py --part {part}/{_KERNEL_PROCESSES}", _BITS_LIMIT_S, beside=True)
        for part in range(_KERNEL_PROCESSES)
    ),
    Part("bits of ranks that decode", "tests/gpu/block_bits.py", _BITS_LIMIT_S, beside=True),
    Part("bits of GpuCompressor", "tests/gpu/compressor_bits.py", _BITS_LIMIT_S, beside=True),
    Part("bits of rows with scales", "tests/gpu/rows_bits.py", _BITS_LIMIT_S, beside=True),
    Part("bits of the device engine, 2 ranks through the host", "tests/gpu/engine_bits.py", _BITS_LIMIT_S, beside=True),
    Part("the same, 3 ranks", "tests/gpu/engine_bits.py --ranks 3", _BITS_LIMIT_S, beside=True),
    Part("offsets beyond 2^31", "tests/gpu/on_device.py", _BITS_LIMIT_S, stand_in=None, beside=True),
    Part(
        "engines on NCCL, one rank", "tests/gpu/engines_on_device.py --only nccl", _BITS_LIMIT_S, stand_in=None,
        beside=True,
    ),
    Part(
        "engines, two ranks through the host", "tests/gpu/engines_on_device.py --only staged", _BITS_LIMIT_S,
        stand_in=None, beside=True,
    ),
    Part(
        "many ranks in one process", "tests/gpu/many_ranks.py --seeds 50 --limit-s 40", _BITS_LIMIT_S,
        stand_in="--seeds 1", beside=True,
    ),
    Part("bits with servers", "tests/gpu/network_bits.py", 60),
    Part("kernels, 128 registers", "evaluation/benchmarks/bench_gpu.py", 60, table=True),
    Part("DDP steps", "evaluation/benchmarks/gpu/ddp_steps.py", 120, table=True, stand_in="--stand-in"),
    Part("a step by stage", "evaluation/benchmarks/gpu/stages_profile.py", 40, table=True, stand_in="--stand-in"),
    Part("FSDP2", "evaluation/benchmarks/gpu/fsdp_steps.py", 45, table=True, stand_in="--stand-in"),
    Part("kernels, 96 registers", "evaluation/benchmarks/bench_gpu.py --registers 96", 40, table=True),
    Part("kernels, 80 registers", "evaluation/benchmarks/bench_gpu.py --registers 80", 40, table=True),
    Part(
        "limit of encode, recode and decode (ncu)", "evaluation/benchmarks/bench_gpu.py --log-coordinates 24", 60,
        stand_in=None, tool="ncu --clock-control none --set full --kernel-id ::regex:_blocks_kernel:2",
    ),
    Part(
        "memory checked (compute-sanitizer)", "tests/gpu/compressor_bits.py", 90, stand_in=None,
        tool="compute-sanitizer --tool memcheck --error-exitcode 1",
    ),
)  # fmt: skip


@dataclass
class Outcome:
    """Outcome of a part. status: "ok", or the reason. tail: the end of its output."""

    name: str
    command: str
    status: str
    seconds: float = 0.0
    limit_s: float = 0.0
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether it began, and did not end well."""
        return self.status not in ("ok", *_NOT_BEGUN)


_NO_TOOL, _NO_GPU, _NO_TIME = "the tool is not on PATH", "needs a GPU", "left out: the time was over"
_NOT_BEGUN = (_NO_TOOL, _NO_GPU, _NO_TIME)


class Run:
    """A part from its start to its end, at most for its limit and for the rest of the time."""

    def __init__(self, part: Part, folder: Path, *, left_s: float, stand_in: bool) -> None:
        tool = shlex.split(part.tool)
        program, *options = shlex.split(part.command)
        options += shlex.split(part.stand_in or "") if stand_in else []
        self._table = folder / f"{part.name.replace(' ', '_')}.json"
        self._table.unlink(missing_ok=True)
        if part.table:
            options += ["--json", str(self._table)]
        self.outcome = Outcome(part.name, " ".join([*tool, "python", program, *options]), "ok")
        self._process: subprocess.Popen[bytes] | None = None
        if stand_in and part.stand_in is None:
            self.outcome.status = _NO_GPU
        elif tool and shutil.which(tool[0]) is None:
            self.outcome.status = _NO_TOOL
        elif left_s <= 0:
            self.outcome.status = _NO_TIME
        if self.outcome.status != "ok":
            return
        self.outcome.limit_s = min(part.limit_s, left_s)
        folders = [str(ROOT / name) for name in _SEARCHED.get(Path(program).parts[0], ())]
        searched = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = os.environ | {"PYTHONPATH": searched} | ({"TRITON_INTERPRET": "1"} if stand_in else {})
        self._log = folder / f"{self._table.stem}.log"
        self._start = time.monotonic()
        with self._log.open("w") as output:
            self._process = subprocess.Popen(
                [*tool, sys.executable, "-P", str(ROOT / program), *options],
                cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def over(self) -> bool:
        """Whether it ended, or its time; the outcome is whole then."""
        if self._process is None:
            return True
        code = self._process.poll()
        seconds = time.monotonic() - self._start
        if code is None and seconds < self.outcome.limit_s:
            return False
        if code is None:
            self.outcome.status = f"not over after {self.outcome.limit_s:.0f} s"
        elif code != 0:
            self.outcome.status = f"ended with {code}"
        self.end()
        self.outcome.seconds = seconds
        self.outcome.tail = self._log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        if self._table.exists():
            self.outcome.columns, self.outcome.rows = table_of(json.loads(self._table.read_text()))
        return True

    def end(self) -> None:
        """End it and the processes of its session, which belong to it alone."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None


def run_at_once(parts: Sequence[Part], folder: Path, *, left_s: float, stand_in: bool) -> Iterator[list[Outcome]]:
    """Run parts beside each other; after each end, yield the outcomes of ended parts in the order of the parts."""
    runs = [Run(part, folder, left_s=left_s, stand_in=stand_in) for part in parts]
    over: set[int] = set()
    try:
        while len(over) < len(runs):
            ended = {number for number, run in enumerate(runs) if number not in over and run.over()}
            over |= ended
            if ended:
                yield [run.outcome for number, run in enumerate(runs) if number in over]
            else:
                time.sleep(_POLL_S)
    finally:
        for run in runs:
            run.end()


def table_of(result: Any) -> tuple[list[str], list[list[str]]]:
    """The columns and rows of a part's JSON: a table, or a list of rows of a benchmark."""
    if isinstance(result, dict):
        return result["columns"], result["rows"]
    columns = [name for name in result[0] if name != "device"]
    return columns, [[_cell(row[name]) for name in columns] for row in result]


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def page(machine: str, outcomes: Sequence[Outcome]) -> list[str]:
    """The report for people, in Markdown."""
    lines = [f"{machine}.", "", "| part | came to | s | limit |", "| --- | --- | ---: | ---: |"]
    for outcome in outcomes:
        status = f"**{outcome.status}**" if outcome.failed else outcome.status
        lines.append(f"| {outcome.name} | {status} | {outcome.seconds:.0f} | {outcome.limit_s:.0f} |")
    for outcome in outcomes:
        if outcome.status in _NOT_BEGUN:
            continue
        lines += ["", f"### {outcome.name[:1].upper()}{outcome.name[1:]}", "", f"`{outcome.command}`", ""]
        if outcome.rows:
            lines += [f"| {' | '.join(outcome.columns)} |", "| --- |" + " ---: |" * (len(outcome.columns) - 1)]
            lines += [f"| {' | '.join(row)} |" for row in outcome.rows]
        if outcome.failed or not outcome.rows:
            lines += ["", "```", *outcome.tail, "```"]
    return [*lines, ""]


def machine_of(stand_in: bool) -> str:
    """The machine of this run."""
    code = "import torch, triton; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    code += "; print(torch.__version__, triton.__version__)"
    found = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False)
    name, versions = [*found.stdout.splitlines(), "", ""][:2]
    if found.returncode != 0 or not (name or stand_in):
        reason = found.stderr.splitlines()[-1] if found.stderr else "torch sees no GPU here"
        sys.exit(f"bench_run: {reason}; --stand-in runs the parts on the CPU")
    torch_version, triton_version = [*versions.split(), "", ""][:2]
    where = "stand-in on the CPU: the numbers mean nothing" if stand_in else name
    return (
        f"{datetime.date.today()}, {where}, torch {torch_version}, Triton {triton_version}, {os.cpu_count()} cores, "
        f"Linux {platform.release().partition('-')[0]}"
    )


def write(folder: Path, machine: str, outcomes: Sequence[Outcome]) -> None:
    report = {"machine": machine, "parts": [asdict(outcome) | {"failed": outcome.failed} for outcome in outcomes]}
    (folder / "report.json").write_text(json.dumps(report, indent=1))
    (folder / "report.md").write_text("\n".join(page(machine, outcomes)))


def run_all(parts: Sequence[Part], folder: Path, *, budget_s: float, stand_in: bool, machine: str) -> list[Outcome]:
    """Run all parts; the reports are in the folder after each."""
    folder.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    end = time.monotonic() + budget_s
    for group in groups_of(parts, alone=stand_in):
        before, ended = [*outcomes], 0
        for at_once in run_at_once(group, folder, left_s=end - time.monotonic(), stand_in=stand_in):
            outcomes = before + at_once
            write(folder, machine, outcomes)
            ended = len(at_once)
        for outcome in outcomes[len(outcomes) - ended :]:
            print(f"{outcome.name}: {outcome.status}, {outcome.seconds:.0f} s", flush=True)
    return outcomes


def groups_of(parts: Sequence[Part], *, alone: bool) -> list[list[Part]]:
    """Return the parts that run at once. alone: each by itself."""
    groups = [[*group] for _, group in itertools.groupby(parts, lambda part: part.beside)]
    return [some for group in groups for some in ([group] if group[0].beside and not alone else [[p] for p in group])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build/bench/gpu")
    parser.add_argument("--only", default="", help="parts with that in their names")
    parser.add_argument("--budget-s", type=float, default=600)
    parser.add_argument("--stand-in", action="store_true")
    arguments = parser.parse_args()
    if not 0 < arguments.budget_s < float("inf"):
        parser.error(f"--budget-s are the seconds that all parts may take, more than 0, not {arguments.budget_s:g}")
    parts = [part for part in PARTS if arguments.only in part.name]
    if not parts:
        parser.error(f"no part has {arguments.only!r} in its name: {', '.join(part.name for part in PARTS)}")
    outcomes = run_all(
        parts, arguments.folder.resolve(), budget_s=arguments.budget_s, stand_in=arguments.stand_in,
        machine=machine_of(arguments.stand_in),
    )  # fmt: skip
    print(f"wrote {arguments.folder}/report.md and report.json")
    return 1 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
