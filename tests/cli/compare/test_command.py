"""thc compare, out of a script and on gradients of its own, as users call it."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from byteps_thc._cli.cli import app
from byteps_thc._cli.compare.measure import _run
from byteps_thc._cli.compare.ranks import ALONE, BITS, POWER_SGD, SERVERS, Job

SCRIPT = """
import sys, torch
from torch import nn
model, other = nn.Linear(200, 100), nn.Linear(2, 2)
optimizers = [torch.optim.{optimizer}(part.parameters()) for part in (model, other)]
for step in range(int(sys.argv[1])):
    for part, optimizer in zip((model, other), optimizers):
        optimizer.zero_grad()
        part(torch.full((4, part.in_features), step + 1.0)).sum().backward()
        try:
            optimizer.step()
        except Exception:
            pass
print("went on")
"""


def compare(*arguments: str | Path) -> Any:
    options = ["--seconds", "0.05", *map(str, arguments)]
    result = CliRunner().invoke(app, ["compare", *options], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout) if "--json" in arguments else result.stdout


def refusal(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    assert result.exit_code == 1, result.output
    return " ".join(result.output.split())


ALIKE = """
import torch
random = torch.Generator().manual_seed(1)
weight, bias = torch.nn.Parameter(torch.zeros(64, 256)), torch.nn.Parameter(torch.zeros(256))
optimizer, common = torch.optim.SGD([weight, bias]), torch.randn(64, 256, generator=random)
while True:
    weight.grad = common + 0.5 * torch.randn(64, 256, generator=random)
    bias.grad = torch.full((256,), 0.01)
    optimizer.step()
"""


def test_gradients_of_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks and a server on this host; from a clone, whose source folder is not what is installed."""
    (tmp_path / "byteps_thc").mkdir()
    (tmp_path / "byteps_thc/__init__.py").write_text("raise ImportError('the source folder')")
    (tmp_path / "alike.py").write_text(ALIKE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    found = compare("--script", "alike.py", "--steps", "7", "--servers", "1", "--bandwidth", "1M,100M", "--json")
    rows = {row["name"]: row for row in found["ways"]}
    bits = {name: row["bits"] for name, row in rows.items()}
    assert bits.pop(POWER_SGD) == pytest.approx(64 * ((64 + 256) * 4 + 256) / (65 * 256))
    assert bits == {"fp32": 64, "bf16": 32, "fp16": 32, "THC 5+5": 10.265625, "THC 4+4": 8.265625, SERVERS: 12}
    assert rows["fp32"]["nmse"] < 1e-12
    errors = [rows[name]["nmse"] for name in ("bf16", "THC 5+5", "THC 4+4", POWER_SGD)]
    assert errors == sorted(errors)
    assert errors[1] < 0.01
    assert rows["THC 5+5"]["link_bits"] == pytest.approx(65 * 256 * 10.265625 * 3 / 4)
    assert 0 < rows["THC 5+5"]["processor_s"] < 1
    assert set(found["break_even"]) == {"THC 5+5", "THC 4+4", SERVERS}


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_script(tmp_path: Path, optimizer: str) -> None:
    """The last steps of all optimizers stand for workers; the script ends there, whatever it catches."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(optimizer=optimizer))
    kept = tmp_path / "kept.pt"
    command = [sys.executable, "-m", "byteps_thc._cli.compare.capture", str(kept), "3", "2", str(script), "100"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "went on" not in run.stdout
    gradients = torch.load(kept)
    assert [own["parameter 0"].unique().tolist() for own in gradients] == [[16.0], [20.0]]
    assert [list(own) for own in gradients] == [[f"parameter {number}" for number in range(4)]] * 2
    assert [own["parameter 2"].unique().tolist() for own in gradients] == [[16.0], [20.0]]
    times = torch.load(kept.with_suffix(".times"))
    assert len(times) == 2
    assert all(time_s > 0 for time_s in times)


def test_optimizers_that_step_at_other_times(tmp_path: Path) -> None:
    """Twice in a step, in every second step alone, and a script that ends, or exits, with its last step."""
    script = tmp_path / "train.py"
    lines = [
        SCRIPT.format(optimizer="SGD"),
        "optimizers.append(torch.optim.SGD([late := nn.Parameter(torch.ones(3))]))",
        "for part in (model, other):",
        "    part(torch.ones(4, part.in_features)).sum().backward()",
        "for step in range(int(sys.argv[1])):",
        "    for optimizer in (optimizers[0], optimizers[1], optimizers[1], optimizers[2])[: 3 + step % 2]:",
        "        late.grad = torch.ones(3)",
        "        optimizer.step()",
        "sys.exit(0)",
    ]
    script.write_text("\n".join(lines).replace("range(int", "range(0 * int", 1))
    kept = tmp_path / "kept.pt"
    command = [sys.executable, "-m", "byteps_thc._cli.compare.capture", str(kept), "3", "2", str(script), "5"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "only some steps have gradients of parameter 4: these are left out" in run.stderr
    assert [list(own) for own in torch.load(kept)] == [[f"parameter {number}" for number in range(4)]] * 2


@pytest.mark.slow
def test_script_from_the_command_line(tmp_path: Path) -> None:
    """Its step's time counts; so would --compute-ms."""
    script = tmp_path / "train.py"
    slow = SCRIPT.format(optimizer="SGD").replace("    for part", "    time.sleep(0.1)\n    for part", 1)
    script.write_text(f"import time\n{slow}")
    lines = compare("--script", script, "--steps", "7", "--bandwidth", "100M,1G,10G", "--", "100")
    assert "20.106 k parameters, 4 ranks" in lines
    assert max(map(len, lines.splitlines())) <= 80
    assert " Step " in lines
    [row] = [line for line in lines.splitlines() if "THC 5+5" in line and "ms" in line]
    assert all(100 < float(cell.split()[0]) < 1000 for cell in row.split("\u2502")[4:7]), row


def test_a_rank_alone_as_on_a_gpu() -> None:
    """--device measures one rank; here in host memory."""
    step_s, nmse = _run(Job(1, 50_000, 0.05, [], device=False), None, 0)
    assert set(step_s) == {ALONE, *BITS, POWER_SGD}
    assert all(0 < seconds < 1 for seconds in step_s.values())
    assert set(nmse) == {*BITS, POWER_SGD}


def test_script_that_ends_before(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(optimizer="SGD"))
    assert "ended with exit code 1 before step 20 of its optimizer" in refusal("--script", script, "--", "4")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("pass", ["train.py called no optimizer.step()"]),
        (SCRIPT.format(optimizer="SGD"), ["train.py ended after 2 of 5 steps: lower --steps"]),
        (
            "def f():\n    raise OSError('mine')\nf()",
            ["Traceback", "line 3, in <module>", "line 2, in f", "OSError: mine"],
        ),
    ],
)
def test_script_that_ends_says_why(lines: str, words: list[str], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(lines)
    command = [sys.executable, "-P", "-m", "byteps_thc._cli.compare.capture", "kept.pt", "3", "2", str(script), "2"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert all(word in run.stderr for word in words)
    assert "runpy" not in run.stderr


def test_options_are_checked_before_pytorch_loads() -> None:
    """Which takes seconds."""
    code = (
        "import sys; from byteps_thc._cli.cli import app; app(standalone_mode=False, args=['compare', *sys.argv[1:]])"
    )
    for arguments in (["--workers", "1"], ["--servers", "-1"], ["--workers", "4", "--ranks-per-host", "3"]):
        command = [sys.executable, "-P", "-X", "importtime", "-c", code, *arguments]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert f"{arguments[-2]} must be" in run.stderr
        assert "| torch\n" not in run.stderr


@pytest.mark.parametrize(
    ("gradient", "words"),
    [
        ("torch.zeros(8)", "all gradients of the script are 0"),
        ("torch.full((8,), float('nan'))", "the gradient of parameter 0 has NaN or infinity"),
        ("torch.ones(8)", "gradients of 8 parameters are too small to compare"),
    ],
)
def test_gradients_that_say_nothing_are_refused(tmp_path: Path, gradient: str, words: str) -> None:
    lines = [
        "import torch",
        "parameter = torch.nn.Parameter(torch.zeros(8))",
        "optimizer = torch.optim.SGD([parameter])",
        "while True:",
        f"    parameter.grad = {gradient}",
        "    optimizer.step()",
    ]
    (tmp_path / "train.py").write_text("\n".join(lines))
    assert words in refusal("--script", tmp_path / "train.py", "--steps", "7")


def test_the_docs_commands_are_read() -> None:
    root = Path(__file__).parents[3]
    text = "\n".join(page.read_text(encoding="utf-8") for page in [root / "README.md", *root.glob("docs/*.md")])
    lines = re.findall(r"^thc compare(?: (.*?))?(?: +#.*)?$", text, re.MULTILINE)
    assert lines
    for line in lines:
        assert "--seconds must be above 0" in refusal("--seconds", "0", *shlex.split(line))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--script", "/none.py"], "--script /none.py does not exist: pass the path"),
        (
            ["--script", __file__, "--steps", "6"],
            "--steps must be at least 7, of which the last 4 stand for workers, not 6",
        ),
        (["--steps", "20"], "--steps is for --script: pass a script, or omit --steps"),
        (["--parameters", "100"], "parameters are too small to compare: THC sends fewer than 1024 as they are"),
        (["more.pt"], "unexpected arguments: more.pt. Pass a script's arguments as --script SCRIPT"),
        (["--seconds", "0"], "--seconds must be above 0"),
        (["--workers", "1"], "--workers must be in 2 .. 1024, not 1"),
        (["--workers", "1025"], "--workers must be in 2 .. 1024, not 1025"),
        (["--workers", "65", "--servers", "1"], "at most 64 workers"),
        (["--servers", "17"], "--servers must be in 0 .. 16, not 17"),
        (["--ranks-per-host", "0"], "--ranks-per-host must be a divisor of the 4 workers"),
        (["--ranks-per-host", "4", "--workers", "4"], "--ranks-per-host must be a divisor of the 4 workers"),
        (["--cores", "0"], "--cores must be above 0, not 0"),
        (["--compute-ms", "nan"], "--compute-ms must be a time, 0 or more, not nan"),
        (["--bandwidth", "fast"], "--bandwidth must be bits per second"),
        (["--parameters", "many"], "--parameters must be a number such as 25M, 7B or 1e9"),
        (["--parameters", "1e99"], "--parameters must be at most 100 T, not '1e99'"),
        (["--device"], "--device needs a GPU, and PyTorch finds none on this host: omit it"),
        (["--device", "--servers", "1"], "--servers and --device exclude each other: omit --servers"),
    ],
)
def test_refuses_what_cannot_work(arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert words in refusal(*arguments)


def test_ranks_that_end_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert "the ranks that measure on this host ended with exit code 1: read their messages above" in refusal()
