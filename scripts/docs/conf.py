"""Sphinx's settings of the site that make_site.py builds: the project's Markdown files, unchanged, in groups.

The source folder is the project's: README.md is the first page, and links between files work the same in the repository
and on the site. Pages without a group, and broken links, are warnings, and so errors.
"""

import importlib.metadata
import re
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any

from docutils import nodes
from pydantic import BaseModel
from pygments.lexers.c_cpp import CLexer
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

#: The site's navigation: pages, with a short title if theirs is long. `self` is README.md, the first page.
GROUPS = {
    "Start": ["Overview <self>", "docs/quickstart", "docs/results", "docs/migration", "docs/status", "CHANGELOG"],
    "Train": [
        "docs/ddp",
        "docs/fsdp",
        "docs/byteps",
        "docs/reducer",
        "docs/frameworks",
        "docs/parameters",
        "docs/checkpoints",
        "docs/gpu",
    ],
    "Run servers and switches": [
        "docs/servers",
        "docs/slow_links",
        "docs/firewall",
        "docs/switch",
        "Testbed <docs/testbed>",
        "thc-ps <ps_software/README>",
        "P4 programs <p4/README>",
        "Packets <worker_dpdk/README>",
    ],
    "Look after a training": ["docs/monitoring", "docs/troubleshooting"],
    "Reference": ["docs/settings", "docs/api/byteps_thc", "tables/README"],
    "Measurements": ["Claims <evaluation/claims>", "evaluation/benchmarks", "evaluation/README"],
    "Contribute": [
        "How to <CONTRIBUTING>",
        "docs/contributors/algorithm",
        "docs/contributors/protocol",
        "docs/contributors/security",
        "docs/contributors/testing",
        "Source code <byteps_thc/README>",
        "Lab <lab/README>",
        "tests/model/README",
        "P4 model <p4/thc_p4_model/README>",
        "Build of BytePS <scripts/byteps/README>",
    ],
}
#: Pages below others: page -> glob, relative to it.
BELOW = {"byteps_thc/README": "**/README", "docs/api/byteps_thc": "byteps_thc.*"}

project = "byteps_thc"
author = "the authors of byteps_thc"
release = importlib.metadata.version("byteps_thc")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "evaluation/*.md", "**/README.md"]
exclude_patterns = [".*", "build*", "dist", "**/node_modules", "**/__pycache__"]

myst_heading_anchors = 6  # levels of headings that links may name
suppress_warnings = ["myst.header"]  # a page may begin at ###

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
# Docstrings name code in single backticks; public names become links.
default_role = "py:obj"
smartquotes = False
highlight_language = "text"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
html_title = f"byteps_thc {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "monokai"


def add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Append contents for the site alone, which Markdown cannot express."""
    if page == root_doc:
        for caption, pages in GROUPS.items():
            source[0] += _contents(f":caption: {caption}", pages)
    elif page in BELOW:
        source[0] += _contents(":glob:", [BELOW[page]])


def _contents(option: str, pages: list[str]) -> str:
    return "\n".join(["", "", "```{toctree}", ":hidden:", option, "", *pages, "```", ""])


class FolderLinks(SphinxTransform):
    """Link folders of the repository to their README.md; without one, show the name as code."""

    default_priority = 500

    def apply(self, **_: Any) -> None:
        for link in list(self.document.findall(pending_xref)):
            folder = self._folder(link) if link.get("reftype") == "myst" and not link.get("refdomain") else None
            if folder is None:
                continue
            page = self.env.path2doc(folder / "README.md")
            if page in self.env.found_docs:
                link.attributes |= {"refdomain": "doc", "reftarget": page, "reftargetid": None}
            else:
                link.replace_self(nodes.literal("", link.astext()))

    def _folder(self, link: pending_xref) -> Path | None:
        path = Path(self.env.relfn2path(link["reftarget"], self.env.docname)[1])
        return path if path.is_dir() and not link["reftarget"].startswith("#") else None


#: The line of an argument in a docstring: "bits: bits of a code, 1 to 8".
_ARGUMENT = re.compile(r"([a-z_]\w*): ")


def read_as_markdown(
    _app: Sphinx, _what: str, _name: str, _value: object, _options: object, docstring: list[str]
) -> None:
    """Convert a docstring to reStructuredText from its Markdown marks: `code` and indented blocks.

    Lines of arguments, after an empty line, become a list.
    """
    lines: list[str] = []
    in_code = in_list = False
    for line in docstring:
        argument = _ARGUMENT.match(line) if in_list or not any(lines[-1:]) else None
        if line.startswith("    ") and not any(lines[-1:]) and not in_code:
            in_code = True
            lines += [".. code-block:: python", ""]
        in_code = in_code and line[:1] in {"", " "}
        in_list = argument is not None or (in_list and line.startswith(" "))
        if argument:
            lines.append(f"- **{_text(argument[1])}**: {_text(line[argument.end() :])}")
        elif in_list:
            lines.append(f"  {_text(line.strip())}")
        else:
            lines.append(line if in_code else _text(line))
    docstring[:] = lines


def _text(line: str) -> str:
    parts = line.split("`")
    # Escape outside of code, which every second part is.
    parts[::2] = [re.sub(r"([|*_\\])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def without_types(
    _app: Sphinx, _what: str, _name: str, value: object, _options: object, arguments: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Shorten signatures of settings, which have pydantic's types; the settings below them have types."""
    if isinstance(value, type) and issubclass(value, BaseModel):
        parameters = signature(value).parameters.values()
        arguments = str(Signature([parameter.replace(annotation=Parameter.empty) for parameter in parameters]))
    return arguments, returns


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-docstring", read_as_markdown)
    app.connect("autodoc-process-signature", without_types)
    app.add_transform(FolderLinks)
    app.add_lexer("p4", CLexer)  # near enough
    return {"parallel_read_safe": True, "parallel_write_safe": True}
