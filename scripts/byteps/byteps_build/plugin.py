"""THC's compressor for BytePS (byteps_thc/csrc/byteps), compiled against the headers of the unpacked source."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from byteps_build.commands import run
from byteps_build.toolchain import Toolchain

LIBRARIES = ("thc_server.so", "thc_worker.so")
MODULES = ("scripts/byteps/plugins/__init__.py", "byteps_thc/_net/byteps/leftover_memory.py")


def build(repository: Path, source: Path, folder: Path, toolchain: Toolchain, logs: Path) -> None:
    """Build the shared objects with the project's CMake and put them, and the code that loads them, into the source.

    CMake and not setup.py: BytePS is compiled with -Ofast, and THC's kernels must not be.
    """
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "THC_BUILD_PYTHON": "OFF",
        "THC_WITH_DPDK": "OFF",
        "THC_BYTEPS_SOURCE": source,
        "CMAKE_CXX_FLAGS": f"-D_GLIBCXX_USE_CXX11_ABI={int(toolchain.cxx11_abi)}",
        "Python_EXECUTABLE": sys.executable,
    }
    if toolchain.ccache:
        settings["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    defines = [f"-D{name}={value}" for name, value in settings.items()]
    run(
        ["cmake", "-S", repository, "-B", folder, *generator, *defines],
        log=logs / "plugin-configure.log",
        cwd=repository,
    )
    targets = ["--target", "thc_byteps", "--parallel", str(os.cpu_count() or 1)]
    run(["cmake", "--build", folder, *targets], log=logs / "plugin-build.log", cwd=repository)
    package = source / "byteps" / "plugins"
    package.mkdir(exist_ok=True)
    modules = (repository / name for name in MODULES)
    for file in (*modules, *(folder / "byteps" / name for name in LIBRARIES)):
        shutil.copy2(file, package)
