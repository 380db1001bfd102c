"""Python code in Markdown files."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: What users read on front ends, in this order; headings are different.
GUIDE = [ROOT / f"docs/{page}.md" for page in ("plugins", "frameworks", "engines", "operations")]


def text_before(document: Path, snippet: str) -> str:
    """Return the paragraph right before a python block, in one line."""
    before = document.read_text(encoding="utf-8").partition(f"```python\n{snippet}```")[0]
    return " ".join(before.rstrip().rpartition("\n\n")[2].split())


def python_snippets(document: Path) -> dict[str, list[str]]:
    """Return the python blocks of each section, by its heading."""
    snippets: dict[str, list[str]] = {}
    for section in re.split(r"^##+ ", document.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        heading = section.partition("\n")[0]
        blocks = re.findall(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
        if blocks:
            snippets[heading] = blocks
    return snippets


def guide_snippets() -> dict[str, list[str]]:
    """Return those of all pages of the guide."""
    return {heading: blocks for page in GUIDE for heading, blocks in python_snippets(page).items()}
