"""Pages are short and written by CONTRIBUTING's rules (evaluation/words.py), and the script finds violations."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import words

ROOT = Path(__file__).parents[2]
#: Pages for users. The generated one of settings and reports of measurements are looked up, not read.
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.stem != "settings")]
#: Pages of tables.
WITHOUT_CODE = ("README", "results", "status", "troubleshooting")


def prose_words(page: Path) -> int:
    """Words of a page without code."""
    return sum(len(part.split()) for _, part in words.paragraphs(words.prose(page.read_text(encoding="utf-8"))))


def test_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    assert len(text.split()) <= 900


def test_pages_for_users_are_short() -> None:
    numbers = {page.stem: prose_words(page) for page in PAGES}
    assert sum(numbers.values()) <= 12_000
    assert max(numbers.values()) <= 1_050


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in WITHOUT_CODE], ids=lambda page: page.stem)
def test_pages_show_code(page: Path) -> None:
    blocks = len(re.findall(r"^\s*```\w+$", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert blocks >= 8 * prose_words(page) / 1000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_cells_are_short(page: Path) -> None:
    for row in re.findall(r"^\|.*\|$", page.read_text(encoding="utf-8"), re.MULTILINE):
        cells = [re.sub(r"\]\([^)]*\)", "]", cell).strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        assert len(cells) <= 6, row
        assert max(len(cell) for cell in cells) <= 120, row
        assert ";" not in row, row


@pytest.mark.parametrize(
    ("kind", "bad", "good"),
    [
        ("start", "One fact. What is left is this.", "One fact. The rest is this. What is left?"),
        ("relative", "It sends what it has.", "It sends `what` it has."),
        ("demonstrative", "The rate is that of a link.", "The rate is the link's, and that matters."),
        ("verb", "The step goes on.", "The step resumes."),
    ],
)
def test_phrases_are_found(kind: str, bad: str, good: str) -> None:
    assert kind in {each.kind for each in words.found_in("a.md", bad)}
    assert not [each for each in words.found_in("a.md", good) if each.kind == kind]


def test_code_is_not_read_and_lines_are_named() -> None:
    [found] = words.found_in("a.md", "# Title\n\n```python\nwhat = 1\n```\n\nOne line\nand what follows.\n")
    assert (found.kind, found.line) == ("relative", 7)
    [comment] = words.comments("a.cc", 'auto what = "//";\nint x;  // One line\n        // and what follows.\n')
    assert comment == (2, " One line\n and what follows.")


def test_counts_may_not_rise(tmp_path: Path) -> None:
    (tmp_path / "words.tsv").write_text("a.md\trelative\t1\n", encoding="utf-8")
    assert words.risen({("a.md", "relative"): 2}, words.read_counts(tmp_path / "words.tsv")) == {("a.md", "relative")}


def test_docstrings_of_public_names_are_within_the_limits() -> None:
    command = [sys.executable, "-P", str(ROOT / "evaluation/words.py"), "--rates"]
    *_, line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    relatives, demonstratives, _, starts = (float(number) for number in re.findall(r"(\d+\.\d)", line)[:4])
    assert line.startswith("docstrings of public names")
    assert (relatives <= 1.0, demonstratives <= 5.0, starts <= 3.0) == (True, True, True), line
