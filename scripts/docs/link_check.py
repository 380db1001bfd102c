"""Check a built site, without network: all that it links to or loads is in it, and files that pages name exist."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Attributes whose address a browser loads by itself.
_LOADED = {
    ("script", "src"),
    ("img", "src"),
    ("link", "href"),
    ("iframe", "src"),
    ("source", "src"),
    ("object", "data"),
}
#: In a stylesheet: what it loads.
_STYLE_ADDRESS = re.compile(r"""(?:url\(|@import)\s*["']?([^"')\s;]+)""")
#: In pages: code that looks like a path, from one of _BASES or the page's own folder. NAME stands for any name.
_PATH = re.compile(
    r"`((?:byteps_thc|docs|lab|p4|ps_software|scripts|tables|tests|worker_dpdk)/(?![\w/]*NAME)[\w./-]+)`"
)
_BASES = (".", "byteps_thc", "tests")
#: In sources and pages: the name of a page of the guide, in an error message or a comment.
_PAGE = re.compile(r"\bdocs/(?!NAME)[\w/]+\.md\b")
_SOURCES = {".py", ".md", ".cc", ".h", ".p4", ".sh", ".toml", ".cmake", ".service"}
_FOLDERS = ("byteps_thc", "docs", "lab", "p4", "ps_software", "scripts", "tables", "tests", "worker_dpdk")


@dataclass
class Page(HTMLParser):
    """What one page of HTML has: places that links may name, links, and what it loads."""

    ids: set[str] = field(default_factory=set)
    links: set[str] = field(default_factory=set)
    loaded: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Of HTMLParser."""
        for name, value in attrs:
            if value is None:
                continue
            if name == "id":
                self.ids.add(value)
            elif (tag, name) in _LOADED:
                self.loaded.add(value)
            elif (tag, name) == ("a", "href"):
                self.links.add(value)


def check_site(site: Path) -> tuple[list[str], set[str]]:
    """Return what is wrong, a line each, and the addresses outside of the site that it links to."""
    pages = {path: _read(path) for path in sorted(site.rglob("*.html"))}
    problems: list[str] = []
    external: set[str] = set()
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        for address in sorted(page.links | page.loaded):
            if urlsplit(address).scheme or address.startswith("//"):
                external.add(address)
                if address in page.loaded and not address.startswith("data:"):
                    problems.append(f"{name}: loads {address}, which needs a network")
            elif reason := _missing(site, path, address, pages):
                problems.append(f"{name}: {address}: {reason}")
    for path in sorted(site.rglob("*.css")):
        problems += [
            f"{path.relative_to(site).as_posix()}: loads {address}, which needs a network"
            for address in _STYLE_ADDRESS.findall(path.read_text(encoding="utf-8"))
            if urlsplit(address).scheme in {"http", "https"} or address.startswith("//")
        ]
    return problems, external


def _read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def _missing(site: Path, path: Path, address: str, pages: dict[Path, Page]) -> str | None:
    """Return why a link of a page leads nowhere; None: it leads somewhere."""
    parts = urlsplit(address)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_relative_to(site) or not target.is_file():
        return "no such file"
    place = unquote(parts.fragment)
    if place and target in pages and place not in pages[target].ids:
        return "no such place on that page"
    return None


def check_repository(root: Path) -> list[str]:
    """Return names of files, in pages' code, and of pages, anywhere, that the repository does not have, a line each."""
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
