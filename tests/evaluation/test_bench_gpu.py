"""make bench-gpu without a GPU: every new part runs on its stand-in, and the report has the outcome of each."""

import importlib.util
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from thc_lab.fork_server import start_program

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "evaluation/benchmarks"
SEARCHED = (BENCHMARKS / "gpu", BENCHMARKS, ROOT / "evaluation")
DEADLINE_S = 500  # as others that wait for a program: a busy machine is no fault


def bench_run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_run", BENCHMARKS / "gpu/bench_run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_run"] = module  # dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rows(tmp_path: Path) -> Callable[..., dict[str, list[str]]]:
    """Run a part on its stand-in; its rows by their first cells."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed: pip install 'triton>=3.6'")

    def run(program: str, *options: str) -> dict[str, list[str]]:
        log, table = tmp_path / "output", tmp_path / "table.json"
        variables = {"GLOO_SOCKET_IFNAME": "lo", "TRITON_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
        searched = os.pathsep.join(map(str, SEARCHED))
        process = start_program(
            BENCHMARKS / program, "--json", str(table), *options,
            environment=os.environ | variables | {"PYTHONPATH": searched}, log=log, folder=tmp_path,
            before_import={"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        try:
            status = process.wait(DEADLINE_S)
        finally:
            process.kill()
        assert status == 0, log.read_text(errors="replace")
        columns, cells = bench_run().table_of(json.loads(table.read_text()))
        assert all(len(row) == len(columns) for row in cells)
        return {row[0]: row[1:] for row in cells}

    return run


def test_floor_of_host_calls(rows: Callable[..., dict[str, list[str]]]) -> None:
    measured = rows("gpu/floor.py", "--stand-in")
    assert len(measured) == 13
    assert all(float(us) > 0 for (us,) in measured.values())


def test_kernels_with_fewer_registers(rows: Callable[..., dict[str, list[str]]]) -> None:
    measured = rows("bench_gpu.py", "--registers", "96")
    assert len(measured) == 16
    assert all(float(own) > 0 for own, *_ in measured.values())


def test_steps_of_ddp(rows: Callable[..., dict[str, list[str]]]) -> None:
    measured = rows("gpu/ddp_steps.py", "--stand-in")
    assert len(measured) == 4 * 4 + 4
    for what, (step_ms, hook_ms) in measured.items():
        assert float(step_ms) > 0, (what, hook_ms)
        assert (hook_ms != "") == what.startswith("THC"), (what, hook_ms)


def test_stages_of_a_step(rows: Callable[..., dict[str, list[str]]], tmp_path: Path) -> None:
    measured = rows("gpu/stages_profile.py", "--stand-in", "--trace", str(tmp_path / "trace.json"))
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    called = {name for name, (calls, host_ms, _) in measured.items() if calls.isdigit() and float(host_ms) > 0}
    assert {"the hook, with all below", "encode", "recode", "decode", "all-to-all, begun", "future"} <= called
    assert [name for name, (calls, *_) in measured.items() if calls == "not in this version"] == []


@pytest.mark.slow
def test_fsdp2_with_ranks_that_are_not_there(rows: Callable[..., dict[str, list[str]]]) -> None:
    measured = rows("gpu/fsdp_steps.py", "--stand-in")
    assert [name.split(", ")[-1] for name in measured] == ["1 ranks", "2 ranks", "8 ranks", "fp32", "THC"]
    assert all(float(ms) > 0 for ms, _ in measured.values())


def parts_of(folder: Path, run: Any) -> list[Any]:
    """One that is well, one that fails, one that takes too long with a process of its own, and one for later."""
    programs = {
        "well": 'import sys; open(sys.argv[2], "w").write(\'{"columns": ["what", "us"], "rows": [["call", "1.5"]]}\')',
        "fails": 'print("first"); raise ValueError("no such kernel")',
        "slow": (
            "import os, subprocess, sys, time; "
            f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)']); "
            f"open({str(folder / 'child')!r}, 'w').write(str(child.pid)); print('began', flush=True); time.sleep(100)"
        ),
        "last": "print('over')",
    }
    for name, code in programs.items():
        (folder / f"{name}.py").write_text(code)
    limits = {"slow": 3.0}
    return [
        run.Part(name, str(folder / f"{name}.py"), limits.get(name, 60.0), table=name == "well") for name in programs
    ]


def test_parts_that_fail_or_take_too_long_are_rows(tmp_path: Path) -> None:
    run = bench_run()
    parts = parts_of(tmp_path, run)
    parts += [run.Part("ncu", str(tmp_path / "last.py"), 5.0, tool="no-such-tool --set full")]
    parts += [run.Part("gpu", str(tmp_path / "last.py"), 5.0, stand_in=None)]
    start = time.monotonic()
    outcomes = run.run_all(parts, tmp_path / "out", budget_s=100, stand_in=True, machine="here")
    assert time.monotonic() - start < 60
    assert [outcome.status for outcome in outcomes] == [
        "ok", "ended with 1", "not over after 3 s", "ok", "the tool is not on PATH", "needs a GPU",
    ]  # fmt: skip
    assert [outcome.failed for outcome in outcomes] == [False, True, True, False, False, False]
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["parts"][0]["rows"] == [["call", "1.5"]]
    page = (tmp_path / "out/report.md").read_text()
    for text in ("| call | 1.5 |", "**ended with 1**", "ValueError: no such kernel", "began", "over"):
        assert text in page
    child = int((tmp_path / "child").read_text())
    status = Path(f"/proc/{child}/status")
    deadline = time.monotonic() + 10
    while status.exists() and "zombie" not in status.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not status.exists() or "zombie" in status.read_text(), "what a part has started lives on"


def test_what_the_time_does_not_reach_is_said(tmp_path: Path) -> None:
    run = bench_run()
    outcomes = run.run_all(parts_of(tmp_path, run)[3:], tmp_path / "out", budget_s=0, stand_in=False, machine="here")
    assert [outcome.status for outcome in outcomes] == ["left out: the time was over"]
    assert "left out" in (tmp_path / "out/report.md").read_text()


def test_every_part_is_a_program_with_a_limit() -> None:
    parts = bench_run().PARTS
    assert len({part.name for part in parts}) == len(parts)
    for part in parts:
        program, *_ = shlex.split(part.command)
        assert (ROOT / program).is_file(), part
        assert part.limit_s <= 120
