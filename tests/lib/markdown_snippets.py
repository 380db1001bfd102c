"""Python code in Markdown files, and how a user runs it."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Pages for users, whose code is run.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/contributors").glob("*.md"))]
#: A word of a script, and its launcher.
STARTED_BY = {"init_process_group": "torchrun", "bps.init()": "bpslaunch", "sys.argv": "python"}
#: Pages that show lines of files in docs/examples.
EXAMPLES = ("frameworks",)
#: The testbed starts its script (tests/lab/testbed/test_docs.py).
TESTBED = ("testbed",)


@dataclass(frozen=True)
class Snippet:
    page: Path
    """the file"""
    place: str
    """name of the page and number of the block, such as ddp-1"""
    block: str
    """the code as the page shows it"""
    script: str
    """the code with the script of the page that it is appended to"""
    starter: str
    """torchrun, bpslaunch, python, example or testbed; empty if the page does not say how to run it"""
    output: str
    """text of the block right after it, rank 0's output; empty without one"""


def page_snippets(page: Path) -> list[Snippet]:
    """Return the python blocks of a page in their order.

    A block without a word of STARTED_BY is appended to the last script above it if the paragraph before says "Append".
    """
    text = page.read_text(encoding="utf-8")
    found: list[Snippet] = []
    script, starter = "", ""
    for match in re.finditer(r"^```python\n(.*?)^```\n(?:\n?```text\n(.*?)^```)?", text, re.MULTILINE | re.DOTALL):
        block, output = match[1], match[2] or ""
        said = text[: match.start()].rstrip().rpartition("\n\n")[2]
        if page.stem in EXAMPLES or page.stem in TESTBED:
            code, by = block, "example" if page.stem in EXAMPLES else "testbed"
        elif by := next((name for word, name in STARTED_BY.items() if word in block), ""):
            code, script, starter = block, block, by
        else:
            code, by = f"{script}\n{block}", starter if "append" in said.lower() else ""
        found.append(Snippet(page, f"{page.stem}-{len(found) + 1}", block, code, by, output))
    return found


def started_by(starter: str) -> list[Snippet]:
    """Return the snippets of all pages that are run in this way."""
    return [snippet for page in PAGES for snippet in page_snippets(page) if snippet.starter == starter]


def python_snippets(document: Path) -> dict[str, list[str]]:
    """Return the python blocks of each section, by its heading."""
    snippets: dict[str, list[str]] = {}
    for section in re.split(r"^##+ ", document.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        heading = section.partition("\n")[0]
        blocks = re.findall(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
        if blocks:
            snippets[heading] = blocks
    return snippets


def shell_commands(page: Path) -> list[str]:
    """Return the commands of a page's sh blocks, without comments, variables before them, and text after | or &."""
    text = page.read_text(encoding="utf-8")
    commands: list[str] = []
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"\s(?:\||&&?|;)(?:\s|$)", re.sub(r"(^|\s)#.*", "", line)):
                command = re.sub(r"""^(?:[A-Z_]+=(?:"[^"]*"|'[^']*'|\S)* +)+""", "", part.strip())
                commands += [command] if command else []
    return commands
