"""The source package: downloaded from PyPI by pip, checked, unpacked, patched."""

import hashlib
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from byteps_build.commands import BuildError, run

VERSION = "0.2.5.post15"
SHA256 = "9d6a3c5be4c4b5a172739744bb32725c433f9a9f63794e1885e7376ff4eea99f"
ZEROMQ = "zeromq-4.1.4"


def download(folder: Path, tools: Mapping[str, str], log: Path) -> Path:
    """Return the path of the source package in `folder`, downloaded on demand, after checking its SHA-256.

    tools: of wheel.install_setuptools(); pip asks the package's setup.py for its metadata.
    """
    archive = folder / f"byteps-{VERSION}.tar.gz"
    if not archive.exists():
        requirement = f"byteps=={VERSION} --hash=sha256:{SHA256}\n"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "requirement.txt").write_text(requirement, encoding="utf-8")
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--use-pep517", "--no-binary", ":all:"]
        what = ["--dest", str(folder), "--requirement", str(folder / "requirement.txt")]
        run([sys.executable, "-m", "pip", "download", *options, *what], log=log, cwd=folder, env=tools)
    check(archive)
    return archive


def check(archive: Path) -> None:
    """Raise BuildError unless the patch was written for this archive."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SHA256:
        raise BuildError(f"{archive} has SHA-256 {digest}, not {SHA256}: delete it and build again")


def unpack(archive: Path, source: Path, patch: Path, logs: Path) -> None:
    """Make `source` anew from the archive, patched; it only exists if the whole patch fits."""
    shutil.rmtree(source, ignore_errors=True)
    scratch = source.with_name(source.name + ".part")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    run(["tar", "-xzf", archive], log=logs / "unpack.log", cwd=scratch)
    (unpacked,) = scratch.iterdir()
    run(["patch", "-p1", "--fuzz=0", "--input", patch], log=logs / "patch.log", cwd=unpacked)
    run(["tar", "-xzf", unpacked / f"{ZEROMQ}.tar.gz"], log=logs / "unpack.log", cwd=unpacked / "3rdparty")
    unpacked.rename(source)
    scratch.rmdir()
