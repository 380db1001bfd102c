"""Write the tables of docs/settings.md: settings with their defaults, from docstrings and the registry of variables.

Usage, with byteps_thc installed: python scripts/generate_settings.py [--check]

The meaning of a setting is the first sentences of its docstring, as many as 120 characters hold.
"""

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise

from generated import ROOT, main
from pydantic import BaseModel

from byteps_thc._base.environment import VARIABLES
from byteps_thc._net.network_settings import NetworkSettings, Timeouts
from byteps_thc._scheme.decoding.settings import RankCodes
from byteps_thc.torch.settings import ThcCompression

PAGE = ROOT / "docs/settings.md"
MOST_CHARACTERS = 120

#: A comment that names a table, and the table.
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n\n)((?:\|.*\n)+)")

Row = tuple[str, str, str]


def tree_of(target: type) -> ast.ClassDef:
    path = ROOT / f"{target.__module__.replace('.', '/')}.py"
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return next(node for node in body if getattr(node, "name", "") == target.__name__)  # type: ignore[return-value]


def first_sentences(text: str) -> str:
    sentences = re.split(r"(?<=\.) ", " ".join(text.split()))
    fitting = [" ".join(sentences[:count]) for count in range(1, len(sentences) + 1)]
    return next((each for each in reversed(fitting) if len(each) <= MOST_CHARACTERS), fitting[0])


def meanings(kind: type) -> dict[str, str]:
    """Return field -> meaning, of a class without its bases."""
    found = dict[str, str]()
    for field, text in pairwise(tree_of(kind).body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id[0] != "_":
            if not (isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)):
                raise SystemExit(f"{kind.__name__}.{field.target.id} needs a docstring")
            found[field.target.id] = first_sentences(str(text.value.value))
    return found


def argument_rows(*targets: type) -> Iterator[Row]:
    """Yield the keywords of functions or constructors, each once; a text such as "default: none" is the default."""
    seen = set[str]()
    for target in targets:
        text = ast.get_docstring(tree_of(target)) or ""
        for name, argument in inspect.signature(target).parameters.items():
            if argument.default is argument.empty or name in seen:
                continue
            seen.add(name)
            [meaning] = re.findall(rf"^{name}: ((?:.*)(?:\n .*)*)", text, re.M)
            meaning, default = " ".join(meaning.split()), in_code(argument.default)
            if told := re.search(r"[;,] default:? ([^.]*)\.", meaning):
                default = told[1].replace("'", "`")
                meaning = f"{meaning[: told.start()]}.{meaning[told.end() :]}"
            yield name, default, first_sentences(meaning[:1].upper() + meaning[1:])


def defaults(kind: type) -> dict[str, str]:
    """Return field -> default of a model or dataclass, in Python; empty if the setting is required."""
    if issubclass(kind, BaseModel):
        fields = {name: (field.default, field.is_required()) for name, field in kind.model_fields.items()}
    else:
        fields = {f.name: (f.default, f.default is dataclasses.MISSING) for f in dataclasses.fields(kind)}
    values = {name: "" if required else in_code(value) for name, (value, required) in fields.items()}
    return {name: "" if "Undefined" in value or "MISSING" in value else value for name, value in values.items()}


def in_code(value: object) -> str:
    return f"`{value!r}`".replace("'", '"')


def rows_of(kind: type, bases: tuple[type, ...] = ()) -> Iterator[Row]:
    chosen = defaults(kind)
    for each in (kind, *bases):
        for name, meaning in meanings(each).items():
            if name in chosen:
                yield name, chosen[name], meaning


def _of(module: str, name: str) -> type:
    return getattr(importlib.import_module(f"byteps_thc.{module}".rstrip(".")), name)  # type: ignore[no-any-return]


def table(head: str, rows: Iterator[Row]) -> str:
    """Return a table in Markdown; raises SystemExit if a cell breaks the rules."""
    lines = [f"| {head} | default | meaning |", "| --- | --- | --- |"]
    for name, default, meaning in rows:
        if len(meaning) > MOST_CHARACTERS or ";" in meaning:
            raise SystemExit(f"{name}: write {MOST_CHARACTERS} characters at most and no semicolon: {meaning}")
        lines.append(f"| `{name}` | {default} | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def addresses_rows() -> Iterator[Row]:
    places = {"quorum": NetworkSettings, "loss_tolerant": NetworkSettings}
    places |= dict.fromkeys(defaults(Timeouts), Timeouts) | {"lanes": ThcCompression}
    for name, kind in places.items():
        default = f"`{VARIABLES['DEADLINE_S'].default}`" if name == "operation_s" else defaults(kind)[name]
        yield name, default.replace("False", "false").replace("None", "none"), meanings(kind)[name]


def page() -> str:
    tables = {
        "keywords": table(
            "keyword",
            argument_rows(
                _of("ddp", "compress"), _of("fsdp", "compress_reduce_scatter"), _of("fsdp", "compress_replicas")
            ),
        ),
        "reducer": table("argument", argument_rows(_of("", "ThcReducer"))),
        "RankCodes": table("setting", rows_of(RankCodes)),
        "ServerCodes": table("setting", rows_of(_of("", "ServerCodes"))),
        "CompressionPolicy": table("setting", rows_of(_of("", "CompressionPolicy"))),
        "NetworkConfig": table("setting", rows_of(_of("", "NetworkConfig"), (NetworkSettings,))),
        "Session": table("setting", rows_of(_of("", "Session"))),
        "Timeouts": table("setting", rows_of(Timeouts)),
        "UdpConfig": table("setting", rows_of(_of("", "UdpConfig"))),
        "DpdkConfig": table("setting", rows_of(_of("", "DpdkConfig"))),
        "ThcCompression": table("setting", rows_of(ThcCompression)),
        "variables": table(
            "variable",
            (
                (f"THC_{name}", f"`{each.default}`" if each.default else "", each.meaning)
                for name, each in VARIABLES.items()
            ),
        ),
        "addresses": table("setting", addresses_rows()),
    }
    text = PAGE.read_text(encoding="utf-8")
    written = _TABLE.findall(text)
    if sorted(name for _, name, _ in written) != sorted(tables):
        raise SystemExit(f"{PAGE} needs a comment and a table of each of {', '.join(tables)}")
    return _TABLE.sub(lambda found: f"{found[1]}{tables[found[2]]}\n", text)


if __name__ == "__main__":
    main(lambda: {PAGE: page()}, __doc__)
