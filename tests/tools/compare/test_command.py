"""thc compare, on files and out of a script, as users call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from byteps_thc.tools.cli import app
from byteps_thc.tools.compare.measure import SCHEMES
from byteps_thc.tools.compare.power_sgd import power_sgd

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
    result = CliRunner().invoke(app, ["compare", "--seconds", "0.05", *map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout) if "--json" in arguments else result.stdout


def refusal(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    assert result.exit_code == 1, result.output
    return " ".join(result.output.split())


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Gradients of three workers that have much in common."""
    random = torch.Generator().manual_seed(1)
    common = torch.randn(64, 256, generator=random)
    paths = []
    for worker in range(3):
        own = {"weight": common + 0.5 * torch.randn(64, 256, generator=random), "bias": torch.full((256,), 0.01)}
        paths.append(tmp_path / f"worker{worker}.pt")
        torch.save(own, paths[-1])
    return paths


def options(files: list[Path]) -> list[str]:
    return [part for path in files for part in ("--grads", str(path))]


def test_files(files: list[Path], tmp_path: Path) -> None:
    found = compare(*options(files), "--json", "--plot", tmp_path / "errors.png", "--bandwidth", "100M,100G")
    assert (found["workers"], found["parameters"]) == (3, 65 * 256)
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == [*SCHEMES, "PowerSGD rank 4"]
    assert rows["fp32"]["nmse"] < 1e-12
    assert rows["fp32"]["bits_both_ways"] == pytest.approx(2 * rows["bf16"]["bits_both_ways"])
    errors = [rows[name]["nmse"] for name in ("THC 2 bits", "THC 3 bits", "THC 4 bits", "THC default", "bf16")]
    assert errors == sorted(errors, reverse=True)
    assert all(rows[name]["encode_s"] > 0 for name in rows if name != "fp32" and "Power" not in name)
    # On a slow link bytes decide; what is chosen errs little.
    choice = rows[found["choice_by_bandwidth_bps"]["1e+08"]]
    assert choice["name"].startswith("THC")
    assert choice["nmse"] < 0.025
    assert (tmp_path / "errors.png").stat().st_size > 1000


def test_one_file_of_all_workers_gives_the_same(files: list[Path], tmp_path: Path) -> None:
    torch.save([torch.load(path) for path in files], tmp_path / "all.pt")
    one, several = (
        {row["name"]: row["nmse"] for row in compare(*given, "--json")["rows"]}
        for given in (["--grads", tmp_path / "all.pt"], options(files))
    )
    assert one == several


def test_table_and_advice(files: list[Path]) -> None:
    lines = compare(*options(files), "--bandwidth", "1G")
    assert "THC default" in lines
    assert "PowerSGD rank 4 *" in lines
    assert "At 1 Gb/s: " in lines


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_script(tmp_path: Path, optimizer: str) -> None:
    """The last steps of the first optimizer stand for workers; the script ends there, whatever it catches."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(optimizer=optimizer))
    kept = tmp_path / "kept.pt"
    command = [sys.executable, "-m", "byteps_thc.tools.compare.capture", str(kept), "3", "2", str(script), "100"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "went on" not in run.stdout
    gradients = torch.load(kept)
    assert [own["parameter 0"].unique().tolist() for own in gradients] == [[16.0], [20.0]]
    assert [list(own) for own in gradients] == [["parameter 0", "parameter 1"]] * 2


def test_script_from_the_command_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(optimizer="SGD"))
    found = compare("--script", script, "--steps", "5", "--workers", "3", "--json", "--", "100")
    assert (found["workers"], found["parameters"]) == (3, 20_100)


def test_script_that_ends_before(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(optimizer="SGD"))
    assert "ended with exit code 1 before step 20 of its optimizer" in refusal("--script", script, "--", "4")


def test_script_that_takes_too_long(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time; time.sleep(60)")
    words = refusal("--script", tmp_path / "train.py", "--timeout-s", "0.5")
    assert "took fewer than 20 steps in 0.5 s: fewer --steps or more --timeout-s" in words


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1, 2], "holds int; it takes torch.save() of a dict of gradients by name"),
        ({"a": torch.zeros(8)}, "gradients of one worker"),
        ([{"a": torch.zeros(8)}] * 2, "all gradients are 0"),
        ([{"a": torch.ones(8)}, {"b": torch.ones(8)}], "worker 1's gradients have other names or shapes"),
        ([{"a": torch.ones(8)}, {"a": torch.full((8,), float("nan"))}], "worker 1's gradient 'a' has NaN"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: Any, words: str) -> None:
    torch.save(content, tmp_path / "some.pt")
    assert words in refusal("--grads", tmp_path / "some.pt")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("no gradients")
    assert "it takes torch.save() of a dict" in refusal("--grads", tmp_path / "text.pt")
    assert "No such file" in refusal("--grads", tmp_path / "none.pt")


def test_options_that_do_not_fit(files: list[Path], tmp_path: Path) -> None:
    assert "give --grads FILE for each worker, or --script train.py" in refusal()
    assert "give --grads" in refusal(*options(files), "--script", "train.py")
    assert "there is no such file" in refusal("--script", tmp_path / "none.py")
    assert "--steps must be at least --workers (4), not 2" in refusal("--script", __file__, "--steps", "2")
    assert "--workers must be at least 2" in refusal("--script", __file__, "--workers", "1")
    assert "arguments are for a --script" in refusal(*options(files), "more.pt")
    assert "--seconds must be above 0" in refusal(*options(files), "--seconds", "0")


def test_power_sgd_is_exact_where_the_rank_suffices() -> None:
    """Gradients of rank 2 that share their columns' space: one power iteration finds it."""
    random = torch.Generator().manual_seed(2)
    basis = torch.randn(2, 80, generator=random)
    own: list[dict[str, Tensor]] = [
        {"matrix": torch.randn(60, 2, generator=random) @ basis, "vector": torch.randn(7, generator=random)}
        for _ in range(3)
    ]
    low = power_sgd(own, rank=4)
    exact = torch.cat([torch.stack([gradient[name] for gradient in own]).mean(dim=0).flatten() for name in own[0]])
    torch.testing.assert_close(low.average, exact, rtol=1e-3, atol=1e-4)
    assert low.numbers == (60 + 80) * 4 + 7


@pytest.mark.parametrize(
    "content",
    [b"", b"\x80", b"\x80\x02", b"\x80\x02}q\x00", b"PK\x03\x04", b"lr: 0.1\n", b"\x00" * 600, b"cnone\nnone\n."],
)
def test_a_file_that_is_no_saved_object_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(content)
    said = refusal("--grads", path, "--grads", path)
    assert f"--grads {path}: " in said
    assert "it takes torch.save() of a dict of gradients by name" in said
    assert not content or ": ;" not in said
    if not content:
        assert f"--grads {path}: the file is empty; it takes" in said


@pytest.mark.parametrize("value", [torch.eye(3).to_sparse(), torch.ones(3, dtype=torch.complex64)])
def test_tensors_that_are_no_gradients_are_named(value: Tensor, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save([{"odd": value}] * 2, path)
    assert "odd" in refusal("--grads", path)
