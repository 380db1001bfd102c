"""Run the benchmarks and write their tables into docs/benchmarks.md (make bench; make bench ARGS="ddp ddp_loss").

Every figure is a ratio to a named peer measured in the same run. The text around the tables is kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs/benchmarks.md"
PYTHON = ".venv/bin/python"
OUTPUT = ROOT / "build/bench"
GPU_OUTPUT = OUTPUT / "gpu"
#: Folders that benchmarks and claims import from.
SEARCHED = [str(ROOT / folder) for folder in ("evaluation", "tests/lib", "scripts")]
BENCHMARKS = Path(__file__).with_name("benchmarks")


def environment() -> dict[str, str]:
    """Environment of a benchmark or claim."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(SEARCHED)}


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a step; end with its exit code when it fails."""
    print(f"$ {' '.join(command)}", file=sys.stderr, flush=True)
    result = subprocess.run(command, cwd=ROOT, text=True, check=False, **options)
    if result.returncode != 0:
        sys.exit(result.returncode)
    return result


def result_of(script: str, name: str, *options: str) -> Any:
    """Run a benchmark of evaluation/benchmarks and return what it writes."""
    path = OUTPUT / f"{name}.json"
    run([sys.executable, str(BENCHMARKS / script), "--json", str(path), *options], env=environment())
    return json.loads(path.read_text())


def rows_of(script: str, name: str, *options: str) -> list[dict[str, Any]]:
    """The same, for a benchmark that writes rows."""
    rows: list[dict[str, Any]] = result_of(script, name, *options)
    return rows


def memif_rows() -> list[dict[str, Any]]:
    """thc-ps over DPDK memif against testpmd."""
    run(["cmake", "--preset", "benchmarks"], stdout=subprocess.DEVNULL)
    run(["cmake", "--build", "--preset", "benchmarks", "-j", str(os.cpu_count())], stdout=subprocess.DEVNULL)
    result = run([sys.executable, str(BENCHMARKS / "bench_memif.py")], stdout=subprocess.PIPE)
    measured = json.loads(result.stdout.splitlines()[-1])
    return [
        {
            "what": "thc-ps over memif, per packet of 1024 codes",
            "own_us": 1e6 / measured["thc_ps_packets_per_s"],
            "peer": "testpmd io forwarding, same vdev",
            "peer_us": 1e6 / measured["testpmd_packets_per_s"],
            "target": f">= {measured['target']}x its packets/s",
            "ratio": measured["ratio"],
            "met": measured["ratio"] >= measured["target"],
        }
    ]


def markdown(title: str, command: str, rows: list[dict[str, Any]]) -> list[str]:
    """One section."""
    lines = [f"### {title}", "", f"`{command}`", ""]
    lines += ["| what | own | peer | peer's | ratio | target | met |", "| --- | ---: | --- | ---: | ---: | --- | --- |"]
    for row in rows:
        own, peer = (
            f"{row[key]:,.1f} us" if row[key] < 1e4 else f"{row[key] / 1e3:,.1f} ms" for key in ("own_us", "peer_us")
        )
        met = {True: "yes", False: "**no**", None: ""}[row["met"]]
        lines.append(
            f"| {row['what']} | {own} | {row['peer']} | {peer} | {row['ratio']:.2f} | {row['target']} | {met} |"
        )
    return [*lines, ""]


def ddp_section() -> list[str]:
    """DDP on shaped links: the targets, and a table for each rate."""
    return shaped_section("DDP step, 25 M parameters, 4 gloo ranks on shaped links", "bench_ddp.py", "ddp")


def congestion_section() -> list[str]:
    """Averages over links that carry less than is sent."""
    script, title = "bench_congestion.py", "Links that carry less than is sent"
    lines = [f"### {title}", "", f"`PYTHONPATH=evaluation:tests/lib {PYTHON} evaluation/benchmarks/{script}`", ""]
    if os.geteuid() != 0:
        return [*lines, "Not measured: network namespaces need root (`sudo make bench`).", ""]
    result = result_of(script, "congestion")
    columns = result["columns"]
    lines += [table_line(columns), "| --- | --- |" + " ---: |" * (len(columns) - 2)]
    return [*lines, *(table_line(cells) for cells in result["cells"]), ""]


def hierarchy_section() -> list[str]:
    """DDP over nodes against flat DDP, where the link between the nodes is shaped."""
    return shaped_section("DDP step over 2 nodes of 2 gloo ranks, 25 M parameters", "bench_hierarchy.py", "hierarchy")


def shaped_section(title: str, script: str, name: str) -> list[str]:
    """Targets and tables of a benchmark on shaped links."""
    command = f"PYTHONPATH=evaluation:tests/lib {PYTHON} evaluation/benchmarks/{script}"
    if os.geteuid() != 0:
        return [f"### {title}", "", "Not measured: network namespaces need root (`sudo make bench`).", ""]
    result = result_of(script, name)
    lines = markdown(title, command, result["rows"])
    for table in result["tables"]:
        header, *rest = table["cells"]
        lines += [f"{table['heading']}.", "", table_line(header), "| --- |" + " ---: |" * (len(header) - 1)]
        lines += [*(table_line(cells) for cells in rest), ""]
    return lines


def fsdp_section() -> list[str]:
    """FSDP2's backward on shaped links, at two rates."""
    script, options = "bench_fsdp.py", ["--gbit", "1", "0.25"]
    command = f"PYTHONPATH=evaluation:tests/lib {PYTHON} evaluation/benchmarks/{script} {' '.join(options)}"
    title = "FSDP2 backward, 25 M parameters, 2 gloo ranks on shaped links"
    if os.geteuid() != 0:
        return [f"### {title}", "", "Not measured: network namespaces need root (`sudo make bench`).", ""]
    return markdown(title, command, rows_of(script, "fsdp", *options))


def ddp_loss_section() -> list[str]:
    """What THC does to the loss of the demo's model."""
    loss = result_of("bench_ddp_loss.py", "ddp_loss")
    command = f"PYTHONPATH=evaluation:tests/lib {PYTHON} evaluation/benchmarks/bench_ddp_loss.py"
    difference = loss["thc"] / loss["fp32"] - 1
    return [
        f"### Held-out loss after {loss['steps']} steps, 4 DDP ranks",
        "",
        f"`{command}`",
        "",
        table_line(["DDP, fp32", "THC, default", "difference", "target", "met"]),
        "| ---: | ---: | ---: | --- | --- |",
        table_line(
            [f"{loss['fp32']:.4f}", f"{loss['thc']:.4f}", f"{difference:+.2%}", "within 1%",
             "yes" if abs(difference) <= 0.01 else "**no**"]
        ),
        "",
    ]  # fmt: skip


def synchronization_section() -> list[str]:
    """What lost packets cost with and without synchronising parameters."""
    command = f"PYTHONPATH=evaluation:tests/lib {PYTHON} evaluation/benchmarks/bench_synchronization.py"
    lines = ["### Packet loss with and without synchronisation", "", f"`{command}`", ""]
    lines += [table_line(["run", "seed", "contributions missing", "drift", "held-out loss, best and worst rank"])]
    lines += ["| --- | ---: | ---: | ---: | ---: |"]
    for row in rows_of("bench_synchronization.py", "synchronization"):
        losses = f"{min(row['losses']):.3f}, {max(row['losses']):.3f}"
        lines.append(
            table_line([row["name"], str(row["seed"]), f"{row['missing']:.1%}", f"{row['drift']:.2g}", losses])
        )
    return [*lines, ""]


def gradients_section() -> list[str]:
    """Error of the average on real gradients."""
    measured = result_of("bench_gradients.py", "gradients")
    windows = [name for name in measured["results"][0]["errors"] if name != "normal"]
    lines = ["### Error on real gradients, 4 workers", ""]
    lines += [f"`PYTHONPATH=evaluation:tests/lib {PYTHON} evaluation/benchmarks/bench_gradients.py`", ""]
    lines += [table_line(["", *windows]), "| --- |" + " ---: |" * len(windows)]
    about = [measured["windows"][name] for name in windows]
    lines.append(table_line(["cosine between two workers", *(f"{window['cosine']:.2f}" for window in about)]))
    for i, block in enumerate(measured["blocks"]):
        penalties = [f"{window['max_norm_penalty'][i]:.2f}" for window in about]
        lines.append(table_line([f"largest over mean energy, blocks of {block}", *penalties]))
    for feedback in (False, True):
        rows = [row for row in measured["results"] if row["error_feedback"] == feedback]
        title = "With error feedback" if feedback else "Without error feedback"
        lines += ["", f"{title}: NMSE of the first line over that of a line.", ""]
        lines += [table_line(["", "bits up", "g", "1/p", *windows, "normal", "tensors"])]
        lines += ["| --- |" + " ---: |" * (len(windows) + 5)]
        lines += [gradients_line(row, rows[0], windows) for row in rows]
        lines += [gradients_errors(rows[0], windows)]
    return [*lines, ""]


def gradients_line(row: dict[str, Any], first: dict[str, Any], windows: list[str]) -> str:
    """How many times less a case errs than the first one; last its tensors, geometric mean of the windows."""
    ratios = {
        measure: {name: first["errors"][name][measure] / errors[measure] for name, errors in row["errors"].items()}
        for measure in ("nmse", "tensor_nmse")
    }
    tensors = statistics.geometric_mean([ratios["tensor_nmse"][name] for name in windows])
    cells = [f"{ratio:.2f}" for ratio in [*(ratios["nmse"][name] for name in [*windows, "normal"]), tensors]]
    clamp = "" if row["p"] > 0.1 else f"{1 / row['p']:.0f}"
    return table_line([row["case"], f"{row['bits_up']:.3f}", str(row["granularity"]), clamp, *cells])


def gradients_errors(first: dict[str, Any], windows: list[str]) -> str:
    """NMSE of the first case."""
    cells = [f"{first['errors'][name]['nmse']:.4f}" for name in [*windows, "normal"]]
    return table_line(["NMSE of the first line", "", "", "", *cells, ""])


def feedback_section() -> list[str]:
    """What error feedback does to the losses of small trainings."""
    command = f"PYTHONPATH=evaluation:tests/lib {PYTHON} evaluation/benchmarks/bench_feedback.py --model"
    lines = ["### Is error feedback needed?", ""]
    for model in ("mlp", "cnn", "gpt"):
        measured = result_of("bench_feedback.py", f"feedback_{model}", "--model", model)
        columns, first = measured["columns"], measured["rows"][0]
        lines += [f"`{command} {model}`: {first['steps']} steps, {first['seeds']} seeds.", ""]
        lines += [table_line(columns), "| --- | --- |" + " ---: |" * (len(columns) - 2)]
        lines += [*(table_line(cells) for cells in measured["cells"]), ""]
    return lines


def embeddings_section() -> list[str]:
    """What averages do to rows of an embedding that few batches have."""
    measured = result_of("bench_embeddings.py", "embeddings")
    header, *rest = measured["cells"]
    lines = [
        "### Embeddings",
        "",
        f"`PYTHONPATH=evaluation:tests/lib {PYTHON} evaluation/benchmarks/bench_embeddings.py`:",
    ]
    lines += [f"{measured['steps']} steps.", "", table_line(header), "| --- |" + " ---: |" * (len(header) - 1)]
    return [*lines, *(table_line(cells) for cells in rest), ""]


def accuracy_section() -> list[str]:
    """What each part does to the error of the average, and THC against others at equal bytes."""
    result = result_of("bench_accuracy.py", "accuracy")
    lines = [
        "### Error of the average",
        "",
        f"`PYTHONPATH=evaluation:tests/lib {PYTHON} evaluation/benchmarks/bench_accuracy.py`",
        "",
    ]
    lines += ["| what | workers | independent rounding | stratified | ratio | target | met |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | --- | --- |"]
    met = {True: "yes", False: "**no**", None: ""}
    for row in result["rows"]:
        target = "" if row["target"] is None else f">= {row['target']}x lower"
        figures = [f"{row['independent']:.3e}", f"{row['stratified']:.3e}", f"{row['ratio']:.2f}"]
        lines.append(table_line([row["what"], str(row["workers"]), *figures, target, met[row["met"]]]))
    for cells in (result["ablation"], *result["tables"].values()):
        lines += ["", table_line(cells[0]), "| --- |" + " ---: |" * (len(cells[0]) - 1)]
        lines += [table_line(line) for line in cells[1:]]
    return [*lines, ""]


def eden_section() -> list[str]:
    """Ranks that decode each other's codes, against EDEN."""
    result = result_of("bench_eden.py", "eden")
    lines = [
        "### Error over EDEN's",
        "",
        f"`PYTHONPATH=evaluation:tests/lib {PYTHON} evaluation/benchmarks/bench_eden.py`",
        "",
    ]
    heading, *rows = result["cells"]
    lines += [table_line(heading), "| --- | ---: | ---: |" + " --- |" * (len(heading) - 3)]
    return [*lines, *map(table_line, rows), "", result["summary"], ""]


def table_line(cells: list[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(cells)} |"


def machine() -> str:
    """Where this ran."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(": ", 1)[1] for line in cpuinfo if line.startswith("model name")), platform.machine())
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True, capture_output=True, check=False
    )
    return (
        f"{datetime.date.today()}, commit {commit.stdout.strip() or 'unknown'}: {model}, {os.cpu_count()} cores, "
        f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}."
    )


def push_pull_section(title: str, name: str, *options: str) -> list[str]:
    """GradientAverager through thc-ps on loopback."""
    command = " ".join([f"{PYTHON} evaluation/benchmarks/bench_push_pull.py", *options])
    return markdown(title, command, rows_of("bench_push_pull.py", name, *options))


def push_pull_sections() -> list[str]:
    """All settings of it; the first is what users get."""
    cases = {
        "largest packets that fit": (),
        "largest packets that fit, with error feedback": ("--error-feedback",),
        "largest packets that fit, 1024 slots": ("--slots", "1024"),
        "1024 codes per packet as on Ethernet": ("--codes-per-packet", "1024"),
        "1024 codes per packet, with error feedback": ("--codes-per-packet", "1024", "--error-feedback"),
        "1024 codes per packet, 1024 slots": ("--codes-per-packet", "1024", "--slots", "1024"),
    }
    return [
        line
        for i, (title, options) in enumerate(cases.items())
        for line in push_pull_section(f"push_pull on loopback, {title}", f"push_pull_{i}", *options)
    ]


def loss_section() -> list[str]:
    """thc-ps on a network that loses packets."""
    title = "Packets a second on a network that loses packets"
    return markdown(
        title,
        f"PYTHONPATH=evaluation:tests/lib {PYTHON} evaluation/benchmarks/bench_loss.py",
        rows_of("bench_loss.py", "loss"),
    )


def polling_threads_section() -> list[str]:
    """Sessions with one and two polling threads."""
    command = f"{PYTHON} evaluation/benchmarks/bench_polling_threads.py"
    title = "Polling threads"
    return markdown(title, command, rows_of("bench_polling_threads.py", "polling_threads"))


def kernels_section() -> list[str]:
    """thc_core's kernels."""
    command = f"{PYTHON} evaluation/benchmarks/bench_kernels.py"
    return markdown("Kernels, one thread unless stated", command, rows_of("bench_kernels.py", "kernels"))


def gpu_section() -> list[str]:
    """Ten minutes on a GPU: a section of its own, because most machines have none. Parts that fail are in it, too."""
    command = [sys.executable, str(BENCHMARKS / "gpu/bench_run.py"), "--folder", str(GPU_OUTPUT)]
    print(f"$ {' '.join(command)}", file=sys.stderr, flush=True)
    (GPU_OUTPUT / "report.json").unlink(missing_ok=True)
    subprocess.run(command, cwd=ROOT, check=False)
    if not (GPU_OUTPUT / "report.json").exists():
        sys.exit("make bench-gpu: nothing was run")
    return (GPU_OUTPUT / "report.md").read_text().splitlines()


def failed_on_gpu() -> list[str]:
    """The parts of the last run of gpu_section() that failed."""
    return [part["name"] for part in json.loads((GPU_OUTPUT / "report.json").read_text())["parts"] if part["failed"]]


def p4_model_section() -> list[str]:
    """The P4 programs in the model."""
    command = f"PYTHONPATH=evaluation:tests/lib {PYTHON} evaluation/benchmarks/bench_p4_model.py"
    return markdown("P4 model", command, rows_of("bench_p4_model.py", "p4_model"))


def memif_section() -> list[str]:
    """thc-ps over DPDK, where there is testpmd to compare with."""
    if not shutil.which("dpdk-testpmd"):
        return ["DPDK over memif was not measured: dpdk-testpmd is not installed.", ""]
    return markdown("DPDK over memif", f"{PYTHON} evaluation/benchmarks/bench_memif.py", memif_rows())


#: In the order of the document.
SECTIONS: dict[str, Callable[[], list[str]]] = {
    "kernels": kernels_section,
    "push_pull": push_pull_sections,
    "polling_threads": polling_threads_section,
    "loss": loss_section,
    "congestion": congestion_section,
    "ddp": ddp_section,
    "hierarchy": hierarchy_section,
    "fsdp": fsdp_section,
    "ddp_loss": ddp_loss_section,
    "synchronization": synchronization_section,
    "gradients": gradients_section,
    "eden": eden_section,
    "accuracy": accuracy_section,
    "feedback": feedback_section,
    "embeddings": embeddings_section,
    "p4_model": p4_model_section,
    "memif": memif_section,
}
#: Only when they are named.
NAMED_SECTIONS: dict[str, Callable[[], list[str]]] = {"gpu": gpu_section}


def write(name: str) -> None:
    """Measure a section and put it between its markers in the document."""
    begin, end = f"<!-- {name}: make bench -->", f"<!-- end of {name} -->"
    before, marker, rest = DOCUMENT.read_text().partition(begin)
    if not marker:
        sys.exit(f"{DOCUMENT.relative_to(ROOT)} has no {begin}")
    _, _, after = rest.partition(end)
    # Written after every section: an interrupted run keeps what it has measured.
    lines = [machine(), "", *(SECTIONS | NAMED_SECTIONS)[name]()]
    DOCUMENT.write_text(before + "\n".join([begin, "", *lines]) + end + after)
    print(f"wrote {name} into {DOCUMENT.relative_to(ROOT)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"all when none is given: {', '.join(SECTIONS)}; gpu"
    )
    args = parser.parse_args()
    if unknown := set(args.sections) - set(SECTIONS | NAMED_SECTIONS):
        parser.error(f"unknown sections: {', '.join(sorted(unknown))}")
    for name in args.sections or SECTIONS:
        write(name)
    if "gpu" in args.sections and (failed := failed_on_gpu()):
        sys.exit(f"failed, and in {DOCUMENT.relative_to(ROOT)} what they printed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
