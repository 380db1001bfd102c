"""Run the benchmarks and write their tables into evaluation/benchmarks.md (make bench; make bench ARGS="ddp fsdp").

Every figure is a ratio to a named peer measured in the same run. The text around the tables is kept.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "evaluation/benchmarks.md"
OUTPUT = ROOT / "build/bench"
GPU_OUTPUT = OUTPUT / "gpu"
BENCHMARKS = ROOT / "evaluation/benchmarks"
#: Folders that benchmarks and claims import from.
SEARCHED = [str(ROOT / folder) for folder in ("evaluation", "scripts")]


@dataclass(frozen=True)
class Part:
    """A benchmark under a heading. command: a program of BENCHMARKS and its options. root: it needs network namespaces.

    tool: a program that it needs on PATH.
    """

    title: str
    command: str
    root: bool = False
    tool: str = ""

    def lines(self, output: Path) -> list[str]:
        """Run it. output: for its figures; the lines are its "page"."""
        head = [f"### {self.title}", "", f"`evaluation/benchmarks/{self.command}`", ""]
        if self.root and os.geteuid() != 0:
            return [*head, "Not measured: network namespaces need root (`sudo make bench`).", ""]
        if self.tool and not shutil.which(self.tool):
            return [*head, f"Not measured: {self.tool} is not installed.", ""]
        program, *options = self.command.split()
        command = [sys.executable, str(BENCHMARKS / program), *options, "--json", str(output)]
        print(f"$ {' '.join(command)}", file=sys.stderr, flush=True)
        result = subprocess.run(command, cwd=ROOT, check=False, env=environment())
        if result.returncode != 0:
            sys.exit(result.returncode)
        return [*head, *json.loads(output.read_text())["page"]]


#: Sections by name, in the order of the document.
SECTIONS = {
    "kernels": [Part("Kernels, one thread unless stated", "bench_kernels.py")],
    "push_pull": [
        Part("push_pull on loopback, largest packets that fit", "bench_push_pull.py"),
        Part(
            "push_pull on loopback, 1024 codes per packet as on Ethernet", "bench_push_pull.py --codes-per-packet 1024"
        ),
    ],
    "loss": [Part("Packets a second on a network that loses packets", "bench_loss.py")],
    "congestion": [Part("Links that carry less than is sent", "bench_congestion.py", root=True)],
    "ddp": [Part("DDP step, 25 M parameters, 4 gloo ranks on shaped links", "bench_ddp.py", root=True)],
    "compare": [Part("Predictions of thc compare", "bench_compare.py", root=True)],
    "hierarchy": [Part("DDP step over 2 nodes of 2 gloo ranks, 25 M parameters", "bench_hierarchy.py", root=True)],
    "fsdp": [
        Part("FSDP2 backward, 25 M parameters, 2 gloo ranks on shaped links", "bench_fsdp.py --gbit 1 0.25", root=True),
        *(
            Part(
                f"FSDP2 step, parameters gathered in {dtype}, 25 M parameters, 2 gloo ranks on shaped links",
                f"bench_fsdp.py --whole-step {dtype} --gbit 1 0.1 --repeats 5",
                root=True,
            )
            for dtype in ("bfloat16", "float32")
        ),
    ],
    "accuracy": [Part("Error of the average", "bench_accuracy.py")],
    "embeddings": [Part("Embeddings", "bench_embeddings.py")],
    "p4_model": [Part("P4 model", "bench_p4_model.py")],
    "memif": [Part("DPDK over memif", "bench_memif.py", tool="dpdk-testpmd")],
}
#: Runs when it is named only.
GPU = "gpu"


def environment() -> dict[str, str]:
    """Environment of a benchmark or claim."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(SEARCHED)}


def gpu_lines() -> list[str]:
    """Ten minutes on a GPU: a separate section, because most machines have none. Failed parts are in it, too."""
    command = [sys.executable, str(BENCHMARKS / "gpu/bench_run.py"), "--folder", str(GPU_OUTPUT)]
    print(f"$ {' '.join(command)}", file=sys.stderr, flush=True)
    (GPU_OUTPUT / "report.json").unlink(missing_ok=True)
    subprocess.run(command, cwd=ROOT, check=False)
    if not (GPU_OUTPUT / "report.json").exists():
        sys.exit("make bench-gpu: nothing was run")
    return (GPU_OUTPUT / "report.md").read_text().splitlines()


def failed_on_gpu() -> list[str]:
    """The parts of the last run of gpu_lines() that failed."""
    return [part["name"] for part in json.loads((GPU_OUTPUT / "report.json").read_text())["parts"] if part["failed"]]


def machine() -> str:
    """The machine, and the commit."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(": ", 1)[1] for line in cpuinfo if line.startswith("model name")), platform.machine())
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True, capture_output=True, check=False
    )
    return (
        f"{datetime.date.today()}, commit {commit.stdout.strip() or 'unknown'}: {model}, {os.cpu_count()} cores, "
        f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}."
    )


def write(name: str) -> None:
    """Measure a section and put it between its markers in the document."""
    begin, end = f"<!-- {name}: make bench -->", f"<!-- end of {name} -->"
    before, marker, rest = DOCUMENT.read_text().partition(begin)
    if not marker:
        sys.exit(f"{DOCUMENT.relative_to(ROOT)} has no {begin}")
    _, _, after = rest.partition(end)
    # Written after every section: an interrupted run keeps its results.
    lines = [machine(), ""]
    if name == GPU:
        lines += gpu_lines()
    else:
        for i, part in enumerate(SECTIONS[name]):
            lines += part.lines(OUTPUT / f"{name}_{i}.json")
    DOCUMENT.write_text(before + "\n".join([begin, "", *lines]) + end + after)
    print(f"wrote {name} into {DOCUMENT.relative_to(ROOT)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"all when none is given: {', '.join(SECTIONS)}; {GPU}"
    )
    args = parser.parse_args()
    if unknown := set(args.sections) - {*SECTIONS, GPU}:
        parser.error(f"unknown sections: {', '.join(sorted(unknown))}")
    for name in args.sections or SECTIONS:
        write(name)
    if GPU in args.sections and (failed := failed_on_gpu()):
        sys.exit(f"failed, and in {DOCUMENT.relative_to(ROOT)} what they printed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
