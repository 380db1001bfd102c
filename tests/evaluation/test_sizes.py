"""Sizes of the tree only fall (evaluation/sizes.py)."""

import subprocess
from pathlib import Path

import pytest
import sizes


def commit(folder: Path, text: str) -> None:
    (folder / "sizes.tsv").write_text(text)
    author = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "sizes"]):
        subprocess.run(["git", *command], cwd=folder, check=True)


def test_limits_never_rise_again(tmp_path: Path) -> None:
    for text in ("lines\t12\nfiles\t4\n", "lines\t9\nfiles\t4\n", "lines\t10\nfiles\t4\n"):
        commit(tmp_path, text)
    earlier = sizes.committed(tmp_path / "sizes.tsv")
    assert earlier == {"lines": 9, "files": 4}
    now = {"lines": 8, "files": 4}
    assert sizes.faults(now, {"lines": 9, "files": 4}, earlier) == []
    [raised] = sizes.faults(now, {"lines": 10, "files": 4}, earlier)
    assert "allows 10 for lines, and allowed 9 before" in raised
    [grown] = sizes.faults({"lines": 8, "files": 5}, {"lines": 9, "files": 4}, earlier)
    assert grown.startswith("files is 5, at most 4")
    [removed] = sizes.faults(now, {"lines": 9}, earlier)
    assert "no files" in removed


def test_make_sizes_lowers_limits_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(tmp_path, "lines\t12\n")
    file = tmp_path / "sizes.tsv"
    monkeypatch.setattr(sizes, "LIMITS", file)
    monkeypatch.setattr(sizes, "counted", lambda: {"lines": 11, "others": 5})
    assert sizes.main(["--check"]) == 0
    assert sizes.main(["--write"]) == 0
    assert file.read_text() == "lines\t11\n"
    commit(tmp_path, file.read_text())
    monkeypatch.setattr(sizes, "counted", lambda: {"lines": 12})
    assert sizes.main(["--write"]) == 1
    assert file.read_text() == "lines\t11\n"
