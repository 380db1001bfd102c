"""Installed files need no library that a bare host lacks, and errors name a missing one."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from changed_package import DPDK_LIBRARY, NATIVE, ChangedPackage
from doctor_host import run_doctor

from byteps_thc._cli.launch import find_thc_ps
from byteps_thc._native._comm import has_dpdk

#: Runtimes of the C and C++ compilers, which every Linux with Python has or torch brings; zlib, which dpkg needs.
ALLOWED = re.compile(r"(libc|libm|libdl|libpthread|libstdc\+\+|libgcc_s|libz|linux-vdso|ld-linux-[\w-]+)\.so\.\d+")
OPEN_DPDK = """
from byteps_thc import DpdkConfig, Session, ServerCodes
Session(["10.0.0.1"], job=1, worker=0, workers=1, codes=ServerCodes(), backend=DpdkConfig("10.0.0.2"))
"""
needs_dpdk = pytest.mark.skipif(not (NATIVE / DPDK_LIBRARY).exists(), reason="this build has no DPDK")


def needed_by(file: Path) -> list[str]:
    """DT_NEEDED of a compiled file."""
    output = subprocess.run(["readelf", "-d", str(file)], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.+)\]", output)


def run(command: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def libraries_of(file: Path) -> dict[str, str]:
    """Libraries that the dynamic linker loads for a compiled file: name -> path."""
    output = run(["ldd", str(file)]).stdout
    return {Path(line.split()[0]).name: line.split("=>")[-1].split(" (")[0].strip() for line in output.splitlines()}


@pytest.mark.parametrize("name", ["_core", "_comm", "thc-ps"])
def test_needs_no_library_that_is_not_in_the_wheel(name: str) -> None:
    file = find_thc_ps() if name == "thc-ps" else next(NATIVE.glob(f"{name}.*.so"))
    libraries = libraries_of(file)
    assert "libc.so.6" in libraries
    assert "libhwy.so.1" in libraries
    others = {library: path for library, path in libraries.items() if not ALLOWED.fullmatch(library)}
    assert {library: path for library, path in others.items() if Path(path).resolve().parent != NATIVE} == {}


@pytest.mark.parametrize("name", ["_core", "_comm", "thc-ps", "libthc_dpdk"])
def test_compiled_files_are_hardened(name: str) -> None:
    """Stack protector, checked copies, no writable table of functions; thc-ps at an address of chance."""
    file = find_thc_ps() if name == "thc-ps" else next(NATIVE.glob(f"{name}.*so"), None)
    if file is None:
        pytest.skip("this build has no DPDK")
    headers, dynamic = (run(["readelf", "--wide", option, str(file)]).stdout for option in ("-lh", "-d"))
    assert re.search(r"Type:\s+DYN", headers)
    assert "GNU_RELRO" in headers
    assert re.search(r"GNU_STACK.* RW ", headers)
    assert re.search(r"BIND_NOW|FLAGS.*NOW", dynamic)
    symbols = run(["readelf", "--wide", "--dyn-syms", str(file)]).stdout
    assert "__stack_chk_fail" in symbols
    if name in ("_comm", "thc-ps"):
        assert "_chk@" in symbols, "_FORTIFY_SOURCE"


@pytest.mark.skipif(os.confstr("CS_GNU_LIBC_VERSION") != "glibc 2.36", reason="newer compilers ask for newer runtimes")
@pytest.mark.parametrize("name", ["_core", "_comm", "thc-ps"])
def test_a_build_on_debian_12_asks_for_what_manylinux_2_34_has(name: str) -> None:
    """Versions of glibc, and of the libstdc++ of GCC 11: scripts/release.sh promises it of the wheels."""
    file = find_thc_ps() if name == "thc-ps" else next(NATIVE.glob(f"{name}.*.so"))
    symbols = run(["readelf", "--wide", "--version-info", str(file)]).stdout
    for library, newest in (("GLIBC", (2, 34)), ("GLIBCXX", (3, 4, 29)), ("CXXABI", (1, 3, 13))):
        versions = {tuple(map(int, text.split("."))) for text in re.findall(rf"\b{library}_([0-9.]+)", symbols)}
        assert versions
        assert max(versions) <= newest, library


def test_a_build_on_a_host_with_dpdk_has_dpdk() -> None:
    if shutil.which("pkg-config") is None or run(["pkg-config", "--atleast-version=22.11", "libdpdk"]).returncode != 0:
        pytest.skip("no DPDK here")
    assert has_dpdk()
    assert any(library.startswith("librte_ethdev") for library in needed_by(NATIVE / DPDK_LIBRARY))


@needs_dpdk
def test_without_dpdk_s_libraries_the_error_says_what_to_install(tmp_path: Path) -> None:
    copy = ChangedPackage(tmp_path)
    copy.rename_dependency(DPDK_LIBRARY.removesuffix(".so"), b"librte_ethdev.so", b"librte_absent.so")
    worker = run([sys.executable, "-P", "-c", OPEN_DPDK], copy.environment)
    server = run([str(copy.thc_ps), "--dpdk", "--listen", "10.0.0.1"])
    assert server.returncode == 1
    for message in (worker.stderr, server.stderr):
        assert "DPDK's libraries are not installed on this host (librte_absent.so" in message
        assert "apt install dpdk librte-meta-net" in message
    assert "DpdkUnavailableError" in worker.stderr


def test_a_build_without_dpdk_says_so(tmp_path: Path) -> None:
    copy = ChangedPackage(tmp_path)
    (copy.package / "_native" / DPDK_LIBRARY).unlink(missing_ok=True)
    worker = run([sys.executable, "-P", "-c", OPEN_DPDK], copy.environment)
    server = run([str(copy.thc_ps), "--dpdk", "--listen", "10.0.0.1"])
    assert server.returncode == 1
    for message in (worker.stderr, server.stderr):
        assert "this build has no DPDK" in message
        assert "apt install libdpdk-dev" in message


@needs_dpdk
def test_thc_ps_finds_the_back_end_beside_the_package(tmp_path: Path) -> None:
    """EAL refuses these arguments, so the back end was loaded."""
    copy = ChangedPackage(tmp_path)
    server = run([str(copy.thc_ps), "--dpdk", "--listen", "10.0.0.1", "--eal-args", "--no-such-option"])
    assert server.returncode == 1
    assert "DPDK does not start" in server.stderr


@pytest.mark.parametrize("module", ["_core", "_comm"])
def test_doctor_finds_a_module_that_does_not_load(module: str, tmp_path: Path) -> None:
    copy = ChangedPackage(tmp_path)
    copy.rename_dependency(module, b"libstdc++.so", b"libabsent.so")
    findings = run_doctor(environment=copy.environment)
    assert [name for name, finding in findings.items() if finding["fails"]] == [module]
    assert "libabsent.so" in findings[module]["meaning"]
    assert "pip install" in findings[module]["command"]
    assert findings["socket buffer"]["state"] in ("ok", "problem")  # the other checks ran


@needs_dpdk
def test_doctor_finds_dpdk_that_does_not_load(tmp_path: Path) -> None:
    copy = ChangedPackage(tmp_path)
    copy.rename_dependency(DPDK_LIBRARY.removesuffix(".so"), b"librte_ethdev.so", b"librte_absent.so")
    findings = run_doctor(environment=copy.environment)
    assert not [name for name, finding in findings.items() if finding["fails"]]
    assert findings["DPDK"]["state"] == "optional"
    assert "librte_absent.so" in findings["DPDK"]["meaning"]
    assert "librte-meta-net" in findings["DPDK"]["command"]


def test_import_error_names_the_module_that_does_not_load(tmp_path: Path) -> None:
    copy = ChangedPackage(tmp_path)
    copy.rename_dependency("_core", b"libstdc++.so", b"libabsent.so")
    result = run([sys.executable, "-P", "-c", "from byteps_thc import Compressor"], copy.environment)
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: byteps_thc's compiled module ")
    assert "libabsent.so" in last
    assert "thc doctor" in last
