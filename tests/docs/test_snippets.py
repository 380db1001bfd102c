"""The snippets of the documents run, as they stand there, on two ranks."""

from __future__ import annotations

from pathlib import Path

from markdown_snippets import python_snippets
from ranks import run_ranks

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("snippet_rank.py")


def cases() -> dict[str, list[str]]:
    """Snippets that run one after another, and need no BytePS."""
    plugins, migration = (python_snippets(ROOT / "docs" / name) for name in ("plugins.md", "migration.md"))
    readme = python_snippets(ROOT / "README.md")
    (ddp,) = plugins["DDP"]
    return {
        "ddp": [ddp, *plugins["Checkpoints"], *plugins["Statistics"]],
        "fsdp2": plugins["FSDP2"],
        "hsdp": plugins["HSDP"],
        "baseline": ["ddp = DistributedDataParallel(model)\n" + plugins["Baselines"][0]],
        "from ddp": migration["From plain DDP"][1:],
        "from horovod": migration["From Horovod"][1:],
        "readme": [readme["In one line"][0]],
        "readme fsdp2": [readme["In one line"][1]],
    }


def test_snippets_average_gradients(tmp_path: Path) -> None:
    reports = run_ranks(PROGRAM, 2, tmp_path, settings={"cases": cases()}, timeout_s=110)
    assert reports == [sorted(cases())] * 2
