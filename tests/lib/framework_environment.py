"""A Python of its own for frameworks: packages that are installed here, torch too, and a file of requirements."""

import hashlib
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "docs/examples/requirements.txt"
INSTALL_TIMEOUT_S = 1200
#: pip's message where it has no index to ask, or the index does not know the package.
NO_INDEX = ("NewConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "(from versions: none)")


def framework_python() -> Path:
    """The interpreter in build/, made the first time under its inputs' digest; skips where pip has no index."""
    site = sysconfig.get_path("purelib")
    made_from = "\n".join([REQUIREMENTS.read_text(encoding="utf-8"), sys.version, site])
    folder = ROOT / "build/frameworks" / hashlib.sha256(made_from.encode()).hexdigest()[:16]
    python, stamp = folder / "bin/python", folder / "installed"
    if stamp.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "lib" / version / "site-packages/installed_here.pth").write_text(f"{site}\n", encoding="utf-8")
    command = [
        str(python),
        "-P",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--retries",
        "1",
        "--requirement",
        str(REQUIREMENTS),
    ]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    if installed.returncode != 0:
        said = installed.stdout + installed.stderr
        if any(words in said for words in NO_INDEX):
            pytest.skip(f"pip reaches no index that has the frameworks: {said.strip().splitlines()[-1]}")
        pytest.fail(said)
    stamp.touch()
    return python
