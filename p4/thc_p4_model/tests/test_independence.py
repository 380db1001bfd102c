"""The model runs any P4_16 program: it knows nothing of byteps_thc, which uses it."""

import re
import subprocess
import sys
from pathlib import Path

import thc_p4_model

PACKAGE = Path(thc_p4_model.__file__).parent


def test_it_imports_nothing_of_thc():
    modules = [
        ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "__main__.py"
    ]
    code = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]; print(*sys.modules)"
    command = [sys.executable, "-P", "-c", code, *modules, "thc_p4_model.__main__"]
    imported = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    packages = {name.partition(".")[0] for name in imported}
    assert "thc_p4_model" in packages
    assert not packages & {"byteps_thc", "thc_switch", "numpy", "torch"}


def test_its_sources_have_no_word_of_thc():
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix in {".py", ".p4", ".lark"}:
            text = path.read_text(encoding="utf-8").replace("thc_p4_model", "")
            assert not re.search(r"thc|byteps|homomorphic|gradient", text, re.IGNORECASE), path
