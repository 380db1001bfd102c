#!/usr/bin/env python3
"""Count phrases that make our English hard to read, a file at a time, and hold the counts: they may only fall.

    evaluation/words.py                 # the phrases, each with its place
    evaluation/words.py FILE ...        # phrases of some files or folders
    evaluation/words.py --folders       # phrases per 1,000 words of comments and docstrings, a folder a line
    evaluation/words.py --rates         # per 1,000 words, of pages and of the docstrings of public names
    evaluation/words.py --check         # compare with words.tsv and the limit of a folder (make lint)
    evaluation/words.py --write         # write words.tsv

Markdown files, comments and docstrings are read; code is not. The kinds are:

start          a sentence that begins with `Who`, `What`, `Where`, `That`, `Of` or `So`
relative       a free relative: `what is sent` for "the payload"
demonstrative  a pronoun for a noun: `that of`, `of it`, `the other one`, `there is`
verb           a phrase for a verb of the trade: `goes on` for "resumes"
argument       an argument of a public function without its own line in the docstring
"""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pygments.lexers import BashLexer, CMakeLexer, CppLexer, MakefileLexer, PythonLexer
from pygments.token import Comment

ROOT = Path(__file__).parents[1]
COUNTS = Path(__file__).with_name("words.tsv")
#: Generated pages, and examples.
SKIPPED = ("docs/api/", "docs/examples/")
#: P4 comments as C++ does.
LEXERS = {
    **dict.fromkeys((".cc", ".h", ".c", ".p4"), CppLexer),
    **dict.fromkeys((".sh", "/run", ".sbatch"), BashLexer),
    **dict.fromkeys((".cmake", "CMakeLists.txt"), CMakeLexer),
    **dict.fromkeys((".py", ".pyi"), PythonLexer),
    "Makefile": MakefileLexer,
}
#: Phrases per 1,000 words of the comments and docstrings of a folder.
LIMIT = 2.0
PATTERNS = {
    "start": r"(?:^|(?<=[.!?:] ))(?:Who|What|Where|That|Of|So)\b(?![^.!?]*\?)",
    "relative": r"(?<!, )\b(?:what(?:ever)?|whoever|those who|(?:for|by|to|from|with|and|or|of) who)\b(?![^.!?]*\?)",
    "demonstrative": r"\b(?:(?:that|those) of|of (?:it|them|these|those)(?= ?[.,;:)]| \w)|the other one|an own"
    r"|there (?:is|are|was|were)|(?:this|that) one|those (?:that|which))\b",
    "verb": r"\b(?:(?:go|goes|going|went) on|(?:leave|leaves|left|leaving) out|(?:takes?|took) back"
    r"|(?:gives?|gave|given) (?:up|back)|(?:is|are|be) there\b(?! an?\b)|comes? to)\b",
}
FLAGS = {"start": 0}


class Found(NamedTuple):
    """A phrase, and its place."""

    file: str
    line: int
    kind: str
    phrase: str


def prose(text: str) -> str:
    """Return text with its code, links and marks blanked out, and as many lines as before."""
    text = re.sub(r"^( *)(```|~~~).*?^\1\2 *$", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->", lambda m: "\n" * m[0].count("\n"), text, flags=re.S)
    text = re.sub(r"`[^`]*`", lambda m: "Code" + "\n" * m[0].count("\n"), text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"[*_\[\]>#]", "", text)


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of paragraphs, items of lists and cells of tables."""
    first, lines = 1, list[str]()
    for number, line in enumerate([*text.split("\n"), ""], 1):
        item = re.match(r"\s*([-+]|\d+\.) ", line)
        if lines and (not line.strip() or item or line.lstrip().startswith("|")):
            yield first, " ".join(lines)
            lines = []
        if line.lstrip().startswith("|"):
            yield from ((number, cell.strip()) for cell in line.strip().strip("|").split("|") if cell.strip(" -:"))
        elif line.strip():
            first = first if lines else number
            lines.append(line.strip()[len(item[0].strip()) :].strip() if item else line.strip())


def found_in(file: str, text: str, first: int = 1) -> Iterator[Found]:
    """Yield the phrases of a text."""
    for line, paragraph in paragraphs(prose(text)):
        for kind, pattern in PATTERNS.items():
            for match in re.finditer(pattern, paragraph, FLAGS.get(kind, re.I)):
                yield Found(file, first + line - 1, kind, paragraph[max(match.start() - 25, 0) : match.end() + 25])


def missing_arguments(function: ast.FunctionDef) -> Iterator[str]:
    """Yield arguments that the docstring gives no line, of functions with two or more."""
    text = ast.get_docstring(function) or ""
    spec = function.args
    names = [a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs) if a.arg not in {"self", "cls"}]
    if text and len(names) > 1:
        yield from (name for name in names if not re.search(rf"^\s*`?{name}`?: ", text, re.M))


@cache
def public_definitions() -> dict[str, set[str]]:
    """Return file -> names that it defines for users: those in __all__ of byteps_thc and its public modules."""
    places: dict[str, set[str]] = {}
    for name in ("", ".checkpoint", ".ddp", ".fsdp", ".torch"):
        module = importlib.import_module(f"byteps_thc{name}")
        for value in (getattr(module, public) for public in module.__all__):
            defined = getattr(value, "__module__", None) or ""
            if defined.startswith("byteps_thc") and (inspect.isclass(value) or inspect.isfunction(value)):
                path = defined.replace(".", "/")
                file = f"{path}.py" if (ROOT / f"{path}.py").exists() else f"{path}/__init__.py"
                places.setdefault(file, set()).add(value.__qualname__)
    return places


def public_nodes(file: str, tree: ast.Module) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Yield the definitions for users in a file, and public members of classes."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in public_definitions().get(file, ()):
            yield node
            for each in node.body if isinstance(node, ast.ClassDef) else []:
                if isinstance(each, ast.FunctionDef) and (each.name == "__init__" or not each.name.startswith("_")):
                    yield each


def docstrings(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the docstrings of modules, classes, functions and fields among nodes."""
    for node in nodes:
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for i, each in enumerate(node.body):
            after_field = isinstance(node, ast.ClassDef) and i and isinstance(node.body[i - 1], ast.AnnAssign)
            if (i == 0 or after_field) and isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                yield each.lineno, str(each.value.value)


def comments(file: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of comments. Lines that follow each other in one column are one comment."""
    lexer = next(lexer for suffix, lexer in LEXERS.items() if file.endswith(suffix))
    first, next_line, column, lines = 1, 0, -1, list[str]()
    for position, kind, value in lexer(ensurenl=False, stripnl=False).get_tokens_unprocessed(text):
        if kind not in Comment or kind in Comment.Preproc or kind in Comment.PreprocFile or value.startswith("#!"):
            continue
        line, before = text.count("\n", 0, position) + 1, text[text.rfind("\n", 0, position) + 1 : position]
        if lines and not (line == next_line and len(before) == column and not before.strip()):
            yield first, "\n".join(lines)
            lines = []
        first = first if lines else line
        column = len(before)
        lines += [re.sub(r"^\s*(?:/\*+|//[/!]?<?|#+:?|\*(?!/))|\*/$", "", each) for each in value.rstrip().split("\n")]
        next_line = line + value.rstrip().count("\n") + 1
    if lines:
        yield first, "\n".join(lines)


@cache
def texts(file: str) -> list[tuple[int, str]]:
    """Return (line, text) of the prose of a file."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if file.endswith(".md"):
        return [(1, text)]
    return [*comments(file, text), *(docstrings(ast.walk(ast.parse(text))) if file.endswith(".py") else [])]


def files() -> list[str]:
    """Return the files that git knows or does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    read = [file for file in listed if file.endswith((".md", *LEXERS))]
    return [file for file in sorted({*read}) if not file.startswith(SKIPPED) and (ROOT / file).is_file()]


def phrases(file: str) -> list[Found]:
    """Return the phrases of a file."""
    found = [each for line, part in texts(file) for each in found_in(file, part, line)]
    if not (file.startswith("byteps_thc/") and file.endswith(".py")):
        return found
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for node in public_nodes(file, tree):
        if isinstance(node, ast.FunctionDef):
            found += [Found(file, node.lineno, "argument", name) for name in missing_arguments(node)]
    return found


def rate(name: str, texts: list[str]) -> str:
    """Return a line with the counts of a file per 1,000 words, and starts in per cent of sentences."""
    parts = [part for text in texts for _, part in paragraphs(prose(text))]
    words = sum(len(part.split()) for part in parts) or 1
    sentences = sum(len(re.findall(r"[.!?:](?: |$)", part)) or 1 for part in parts) or 1
    blocks = sum(len(re.findall(r"^\s*```\w+$", text, re.M)) for text in texts)
    kinds = Counter(each.kind for text in texts for each in found_in(name, text))
    thousands = words / 1000
    numbers = [f"{kinds[kind] / thousands:5.1f}" for kind in ("relative", "demonstrative", "verb")]
    share = f"{100 * kinds['start'] / sentences:5.1f}%"
    return f"{name:40} {words:6} words  {' '.join(numbers)}  {share}  {blocks / thousands:5.1f} blocks"


def rates() -> Iterator[str]:
    """Yield lines of Markdown files, and one of the docstrings of public names."""
    yield f"{'file':40}               rel.  dem.  verb  start"
    for file in files():
        if file.endswith(".md"):
            yield rate(file, [(ROOT / file).read_text(encoding="utf-8")])
    texts = list[str]()
    for file in sorted(public_definitions()):
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        texts += [text for _, text in docstrings(public_nodes(file, tree))]
    yield rate("docstrings of public names", texts)


def folders() -> dict[str, tuple[int, int]]:
    """Return folder -> (phrases, words) of its comments and docstrings."""
    result: dict[str, tuple[int, int]] = {}
    for file in (file for file in files() if not file.endswith(".md")):
        folder = "/".join(file.split("/")[:-1][:2]) or "."
        hits, words = result.get(folder, (0, 0))
        hits += sum(1 for _, part in texts(file) for _ in found_in(file, part))
        result[folder] = hits, words + sum(len(part.split()) for _, part in texts(file))
    return result


def counted() -> dict[tuple[str, str], int]:
    """Return (file, kind) -> count above 0."""
    return dict(Counter((each.file, each.kind) for file in files() for each in phrases(file)))


def read_counts(path: Path) -> dict[tuple[str, str], int]:
    """Return the counts that --write has written."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return {(file, kind): int(count) for file, kind, count in rows}


def risen(now: dict[tuple[str, str], int], before: dict[tuple[str, str], int]) -> set[tuple[str, str]]:
    """Return (file, kind) of counts above the written ones."""
    return {key for key in now if now[key] > before.get(key, 0)}


def check() -> int:
    """Compare with words.tsv, print the remedy, and return the exit status."""
    now, before = counted(), read_counts(COUNTS)
    more = risen(now, before)
    for file in sorted({file for file, _ in more}):
        for each in phrases(file):
            if (file, each.kind) in more:
                print(f"{file}:{each.line}: {each.kind}: {each.phrase}", file=sys.stderr)
    if more:
        print("words: more phrases than before; rewrite these sentences (CONTRIBUTING.md)", file=sys.stderr)
    elif now != before:
        print("words: fewer phrases than words.tsv allows; run evaluation/words.py --write", file=sys.stderr)
    above = {folder: hits for folder, (hits, words) in folders().items() if 1000 * hits > LIMIT * words}
    for folder, hits in above.items():
        print(f"words: {folder} has {hits} phrases, more than {LIMIT} per 1,000 words", file=sys.stderr)
    return int(now != before or bool(above))


def main(arguments: list[str]) -> int:
    """Carry out the arguments, and return the exit status."""
    match arguments:
        case ["--rates"]:
            print("\n".join(rates()))
        case ["--folders"]:
            for folder, (hits, words) in sorted(folders().items()):
                print(f"{folder:40} {hits:5} of {words:6} words {1000 * hits / max(words, 1):6.1f}")
        case ["--check"]:
            return check()
        case ["--write"]:
            rows = [f"{file}\t{kind}\t{count}\n" for (file, kind), count in sorted(counted().items())]
            COUNTS.write_text("".join(rows), encoding="utf-8")
        case names:
            for file in (file for file in files() if not names or file.startswith(tuple(names))):
                for each in phrases(file):
                    print(f"{each.file}:{each.line}: {each.kind}: {each.phrase}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
