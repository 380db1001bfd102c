"""Copies of the installed package in which something is broken or missing, for tests of errors."""

import os
import shutil
from pathlib import Path

import byteps_thc
from byteps_thc._cli.launch import find_thc_ps

PACKAGE = Path(byteps_thc.__file__).parent
#: The folder of compiled modules and their libraries.
NATIVE = PACKAGE / "_native"
DPDK_LIBRARY = "libthc_dpdk.so"


class ChangedPackage:
    """The package and thc-ps in a folder, laid out as pip install --target does it."""

    def __init__(self, folder: Path) -> None:
        self.package = folder / "byteps_thc"
        self.thc_ps = folder / "bin" / "thc-ps"
        shutil.copytree(PACKAGE, self.package, ignore=shutil.ignore_patterns("__pycache__", "csrc"))
        self.thc_ps.parent.mkdir()
        shutil.copy2(find_thc_ps(), self.thc_ps)

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(self.package.parent)}

    def compiled(self, name: str) -> Path:
        """The file of a compiled module, or of the DPDK back end."""
        (file,) = self.package.glob(f"_native/{name}*.so")
        return file

    def rename_dependency(self, name: str, library: bytes, other: bytes) -> None:
        """Let a compiled file need a library that no host has, as it would on a host without it."""
        assert len(library) == len(other)
        file = self.compiled(name)
        content = file.read_bytes()
        assert library in content
        file.write_bytes(content.replace(library, other))
