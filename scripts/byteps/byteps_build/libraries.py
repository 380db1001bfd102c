"""The C and C++ libraries: zeromq, ps-lite and the CUDA shim, which BytePS's modules link, and THC's compressor."""

import os
import shutil
import sys
from pathlib import Path

from byteps_build.commands import run
from byteps_build.source import ZEROMQ
from byteps_build.toolchain import Toolchain

#: Code that loads THC's compressor, in the repository.
PLUGIN_MODULES = ("scripts/byteps/plugins/__init__.py", "byteps_thc/_net/byteps/leftover_memory.py")
_PLUGIN_LIBRARIES = ("thc_server.so", "thc_worker.so")
_JOBS = f"-j{os.cpu_count() or 1}"


def build_zeromq(source: Path, toolchain: Toolchain, logs: Path) -> None:
    """Build the bundled zeromq (the library only, not its tests) into ps-lite's deps folder, where BytePS looks."""
    folder = source / "3rdparty" / ZEROMQ
    prefix = source / "3rdparty" / "ps-lite" / "deps"
    if (prefix / "lib" / "libzmq.a").exists():
        return
    flags = {"CFLAGS": "-O2 -fPIC", "CXXFLAGS": "-O2 -fPIC"} | toolchain.compilers
    without = ["--with-libsodium=no", "--with-libgssapi_krb5=no", "--disable-shared", "--disable-dependency-tracking"]
    run(["./configure", f"--prefix={prefix}", *without], log=logs / "zeromq-configure.log", cwd=folder, env=flags)
    targets = ["install-libLTLIBRARIES", "install-includeHEADERS"]
    run(["make", _JOBS, *targets], log=logs / "zeromq-make.log", cwd=folder, env=flags)


def build_ps_lite(source: Path, toolchain: Toolchain, logs: Path) -> None:
    """Build libps.a; BytePS's setup.py would also build ps-lite's tests, and download zeromq."""
    if (source / "3rdparty" / "ps-lite" / "build" / "libps.a").exists():
        return
    settings = [f"ADD_CFLAGS=-D_GLIBCXX_USE_CXX11_ABI={int(toolchain.cxx11_abi)}", f"CXX={toolchain.compilers['CXX']}"]
    if toolchain.rdma:
        settings.append("USE_RDMA=1")
    run(["make", "ps", _JOBS, *settings], log=logs / "ps-lite.log", cwd=source / "3rdparty" / "ps-lite")


def build_shim(shim: Path, prefix: Path, toolchain: Toolchain, logs: Path) -> None:
    """Build the CUDA and NCCL shim as prefix/lib/libnccl_static.a; its headers are in prefix/include."""
    (prefix / "lib").mkdir(parents=True, exist_ok=True)
    if not (prefix / "include").exists():
        (prefix / "include").symlink_to((shim / "include").resolve())
    archive = prefix / "lib" / "libnccl_static.a"
    object_file = prefix / "cuda_nccl_shim.o"
    flags = ["-O2", "-fPIC", "-Wall", "-Wextra", f"-I{shim / 'include'}"]
    sources: list[str | Path] = ["-c", shim / "cuda_nccl_shim.c", "-o", object_file]
    run([*toolchain.compilers["CC"].split(), *flags, *sources], log=logs / "shim.log", cwd=prefix)
    archive.unlink(missing_ok=True)
    run(["ar", "rcs", archive, object_file], log=logs / "shim-ar.log", cwd=prefix)


def build_plugin(repository: Path, source: Path, folder: Path, toolchain: Toolchain, logs: Path) -> None:
    """Build THC's compressor (byteps_thc/csrc/byteps), and put it and its loader into the source.

    With CMake, not setup.py: BytePS is compiled with -Ofast, and THC's kernels must not be.
    """
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "THC_BUILD_PYTHON": "OFF",
        "THC_WITH_DPDK": "OFF",
        "THC_BYTEPS_SOURCE": source,
        "CMAKE_CXX_FLAGS": f"-D_GLIBCXX_USE_CXX11_ABI={int(toolchain.cxx11_abi)}",
        "Python_EXECUTABLE": sys.executable,
    }
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    defines = [f"-D{name}={value}" for name, value in settings.items()]
    configure: list[str | Path] = ["cmake", "-S", repository, "-B", folder, *generator, *defines]
    run(configure, log=logs / "plugin-configure.log", cwd=repository)
    targets = ["--target", "thc_byteps", "--parallel", str(os.cpu_count() or 1)]
    run(["cmake", "--build", folder, *targets], log=logs / "plugin-build.log", cwd=repository)
    package = source / "byteps" / "plugins"
    package.mkdir(exist_ok=True)
    modules = (repository / name for name in PLUGIN_MODULES)
    for file in (*modules, *(folder / "byteps" / name for name in _PLUGIN_LIBRARIES)):
        shutil.copy2(file, package)
