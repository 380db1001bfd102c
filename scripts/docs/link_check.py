"""Checks that Sphinx lacks: a built site loads nothing from other sites, and files named in pages exist."""

import re
from pathlib import Path

#: Addresses of other sites that a browser loads by itself, by the kind of file.
_LOADED = {
    ".html": re.compile(
        r"""<(?:script|img|link|iframe|source|object)\b[^>]*\s(?:src|href|data)="((?:https?:)?//[^"]+)"""
    ),
    ".css": re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s;]+)"""),
}
#: Code of pages that looks like a path, from one of _BASES or the page's own folder. NAME stands for any name.
_PATH = re.compile(
    r"`((?:byteps_thc|docs|lab|p4|ps_software|scripts|tables|tests|worker_dpdk)/(?![\w/]*NAME)[\w./-]+)`"
)
_BASES = (".", "byteps_thc", "tests")
#: Name of a page of the guide, in an error message, a comment or a page.
_PAGE = re.compile(r"\bdocs/(?!NAME)[\w/]+\.md\b")
_SOURCES = {".py", ".md", ".cc", ".h", ".p4", ".sh", ".toml", ".cmake", ".service"}
_FOLDERS = ("byteps_thc", "docs", "lab", "p4", "ps_software", "scripts", "tables", "tests", "worker_dpdk")


def check_site(site: Path) -> list[str]:
    """Return a line for each address that pages and stylesheets load from other sites."""
    return [
        f"{path.relative_to(site).as_posix()}: loads {address}, which needs a network"
        for path in sorted(site.rglob("*"))
        if (pattern := _LOADED.get(path.suffix)) is not None
        for address in sorted({*pattern.findall(path.read_text(encoding="utf-8"))})
    ]


def check_repository(root: Path) -> list[str]:
    """Return a line for each missing file named in pages' code, and each missing page named anywhere."""
    problems = []
    for path in _sources(root):
        text = path.read_text(encoding="utf-8")
        names = {*_PAGE.findall(text), *(_PATH.findall(text) if path.suffix == ".md" else ())}
        folders = [path.parent, *(root / base for base in _BASES)]
        missing = sorted(name for name in names if not any((folder / name).exists() for folder in folders))
        problems += [f"{path.relative_to(root).as_posix()}: names {name}: no such file" for name in missing]
    return problems


def _sources(root: Path) -> list[Path]:
    folders = [path for name in _FOLDERS for path in (root / name).rglob("*")]
    return sorted(path for path in [*root.glob("*"), *folders] if path.suffix in _SOURCES and path.is_file())
