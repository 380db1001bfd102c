"""Finds missing compiled modules without loading them, and says how to get them."""

import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from byteps_thc._base.wire.layout import ARITHMETIC

#: Versions of torch that byteps_thc is tested with (tests/install/test_torch_versions.py).
OLDEST_TORCH, NEWEST_TORCH = "2.9", "2.14"
COMPILED_MODULES = ("_core", "_comm")


def check_built(package: Path) -> None:
    """Raise ImportError if `package` is the source folder and nothing is built in it for this Python."""
    if not (package / "csrc").is_dir():  # installed
        return
    missing = [name for name in COMPILED_MODULES if PathFinder.find_spec(name, [str(package / "_native")]) is None]
    if missing:
        raise ImportError(
            f"{package} is byteps_thc's source folder, and {' and '.join(missing)} are not built in it for this "
            f"Python, {sys.executable}. Run `make setup` in {package.parent}, and scripts with its .venv/bin/python. "
            "Or, if byteps_thc is installed for this Python (pip install .), start it elsewhere: Python imports from "
            "the folder of the script, or from the current one, before it imports what is installed.",
            name="byteps_thc",
            path=str(package),
        )


def check_arithmetic(module: ModuleType) -> None:
    """Raise ImportError unless a compiled module has the arithmetic of this Python code."""
    compiled = getattr(module, "ARITHMETIC", None)
    if compiled != ARITHMETIC:
        raise ImportError(
            f"{module.__name__} has arithmetic version {compiled or 'unknown'}, and the Python code of byteps_thc has "
            f"{ARITHMETIC}: {module.__file__} is left over from another version, and averages would be wrong. Install "
            "byteps_thc again (pip install --force-reinstall --no-deps, or `make setup` in a clone)",
            name=module.__name__,
        )


def explain(error: ImportError) -> ImportError:
    """Return an ImportError with a remedy if torch or a compiled module of this package is missing."""
    if error.name == "torch":
        return ImportError(f"{error}: this part of byteps_thc needs PyTorch, pip install 'torch>={OLDEST_TORCH}'")
    name = Path(error.path or "").name.partition(".")[0]
    if name not in COMPILED_MODULES:
        return error
    return ImportError(
        f"byteps_thc's compiled module {error.path} does not load: {error}. Install byteps_thc again, for this Python "
        "and this host; `thc doctor` says what else is missing.",
        name=error.name,
        path=error.path,
    )
