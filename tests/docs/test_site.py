"""The site builds without warnings and can be searched; bad links are found; public names are documented."""

import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from link_check import check_repository, check_site

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "scripts/docs/make_site.py"
MODULES = sorted(path.stem for path in (ROOT / "docs/api").glob("*.md"))


def make_site(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("furo")
    command = [sys.executable, str(PROGRAM), "--output", str(output), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=230, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("site")
    result = make_site(output)
    assert result.returncode == 0, result.stdout + result.stderr
    return output


def test_the_site_has_all_pages(site: Path) -> None:
    for name in ["index", "README", "docs/ddp", "p4/README", *(f"docs/api/{module}" for module in MODULES)]:
        assert (site / f"{name}.html").is_file(), name
    reference = (site / "docs/api/byteps_thc.ddp.html").read_text(encoding="utf-8")
    assert 'id="byteps_thc.ddp.thc_hook"' in reference
    # An annotation leads to where users import the class from.
    assert 'href="byteps_thc.html#byteps_thc.NetworkConfig"' in reference


def test_search_knows_words_of_guide_and_reference(site: Path) -> None:
    script = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(script.removeprefix("Search.setIndex(").removesuffix(")"))

    def pages(word: str) -> set[str]:
        found = [index[place].get(word, []) for place in ("terms", "titleterms")]
        numbers = [number for each in found for number in (each if isinstance(each, list) else [each])]
        return {index["docnames"][number] for number in numbers}

    assert "docs/frameworks" in pages("lightn")  # words without their endings
    assert "docs/contributors/protocol" in pages("philox4x32")
    assert "docs/api/byteps_thc.ddp" in pages("thc_hook") | pages("ddp")
    assert {"compress", "ThcState"} <= {entry[4] for entry in index["objects"]["byteps_thc.ddp"]}


#: As everywhere else the check looks for names of pages in this file, so these are no strings here.
PAGE, GONE = "docs" + "/page.md", "docs" + "/gone.md"
#: A link in PAGE -> the message about it.
BROKEN = {
    "[page](other.md)": "'other.md'",
    "[place](page.md#nowhere)": "'nowhere'",
    "[place](#nothing)": "'nothing'",
    "[place](../README.md#gone)": "'gone'",
    "[file](../missing.py)": "'../missing.py'",
    "![picture](missing.svg)": "missing.svg",
}
GOOD = (
    "[page](../README.md) [place](../README.md#some-place) [file](../there.py) [folder](../folder) [a](../with_readme)"
)


def test_planted_links_are_found(tmp_path: Path) -> None:
    """The pages of the site's groups are missing here, and are named, too."""
    for name, text in {
        "README.md": f"# First\n\n## Some place\n\n[page]({PAGE})\n",
        PAGE: "\n\n".join(["# Page", GOOD, *BROKEN]),
        "with_readme/README.md": "# Folder\n",
        "there.py": "",
        "folder/file.txt": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    result = make_site(tmp_path / "build", "--source", str(tmp_path))
    assert result.returncode == 1, result.stderr
    said = [line for line in result.stderr.splitlines() if f"{PAGE}:" in line]
    for number, (link, reason) in enumerate(BROKEN.items()):
        line = f"{PAGE}:{5 + 2 * number}: "
        assert any(line in one and reason in one for one in said), f"{link}\n{result.stderr}"
    assert not any(f"{PAGE}:3: " in one for one in said), said
    page = (tmp_path / "build/docs/page.html").read_text(encoding="utf-8")
    assert 'href="../with_readme/README.html"' in page
    assert '<code class="docutils literal notranslate"><span class="pre">folder</span></code>' in page


@pytest.mark.parametrize(
    ("element", "problem"),
    [
        ('<a href="https://example.org/">', None),
        ('<img src="data:image/png;base64,AA"> <img src="picture.svg">', None),
        (
            '<script src="https://example.org/mermaid.js"></script>',
            "loads https://example.org/mermaid.js, which needs a network",
        ),
        ('<link href="//example.org/font.css">', "loads //example.org/font.css, which needs a network"),
    ],
)
def test_elements_of_a_built_page_are_checked(element: str, problem: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(f'<p id="here">{element}')
    assert check_site(tmp_path) == ([f"a.html: {problem}"] if problem else [])


def test_what_a_stylesheet_loads_is_checked(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text('@import "https://example.org/a.css"; p {background: url(b.png)}')
    assert check_site(tmp_path) == ["a.css: loads https://example.org/a.css, which needs a network"]


def test_names_of_files_are_checked(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / PAGE).write_text(f"`{PAGE}`, `docs/NAME.md` and `docs/gone.toml`, in `build/docs/x`")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text(f'"""As {GONE} says."""')
    assert check_repository(tmp_path) == [
        f"{PAGE}: names docs/gone.toml: no such file",
        f"tests/test_a.py: names {GONE}: no such file",
    ]


def public_objects(module: ModuleType) -> Iterator[tuple[str, object]]:
    """The functions and classes that a module offers, and the classes' functions and properties."""
    for name in module.__all__:
        value = getattr(module, name)
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        yield f"{module.__name__}.{name}", value
        for member, attribute in vars(value).items() if inspect.isclass(value) else ():
            if not member.startswith("_") and (inspect.isfunction(attribute) or isinstance(attribute, property)):
                yield f"{module.__name__}.{name}.{member}", attribute


def test_every_public_name_has_a_docstring() -> None:
    objects = [pair for module in MODULES for pair in public_objects(importlib.import_module(module))]
    assert len(objects) > 50
    assert not [name for name, value in objects if not inspect.getdoc(value)]
