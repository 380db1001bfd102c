"""The source folder: imported before anything is built in it, packed into an sdist, and configured on a bare host."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Debian packages that a build without DPDK and Python needs, and g++.
LIBRARIES = ("libhwy", "libfmt", "libspdlog", "libtomlplusplus", "libcli11", "prometheus-cpp", "libsodium")
PACKAGES = {"g++", *(f"{library}-dev" for library in LIBRARIES)}


def configure(folder: Path, *settings: str) -> str:
    """CMake's output on a host on which it finds no library."""
    command = ["cmake", "-S", str(ROOT), "-B", str(folder), "-DCMAKE_IGNORE_PATH=/usr/include;/usr/local/include"]
    environment = os.environ | {"PKG_CONFIG_LIBDIR": str(folder)}
    result = subprocess.run(
        [*command, *settings], capture_output=True, text=True, timeout=100, check=False, env=environment
    )
    assert result.returncode != 0
    return result.stderr


def packages_in(message: str) -> set[str]:
    (line,) = re.findall(r"apt-get install --no-install-recommends (.+)", message)
    return set(line.split())


def test_all_that_a_build_lacks_is_in_one_message(tmp_path: Path) -> None:
    message = configure(tmp_path, "-DTHC_BUILD_PYTHON=OFF", "-DCMAKE_CXX_COMPILER=NOTFOUND", "-DTHC_WITH_DPDK=ON")
    assert message.count("CMake Error") == 1
    assert "CMake Warning" not in message
    assert packages_in(message) == PACKAGES | {"pkg-config", "libdpdk-dev"}


def test_what_is_there_is_not_asked_for(tmp_path: Path) -> None:
    message = configure(tmp_path, "-DTHC_BUILD_PYTHON=OFF", "-DTHC_WITH_DPDK=OFF", "-Dthc_fmt_INCLUDE_DIR=/usr/include")
    assert message.count("CMake Error") == 1
    assert packages_in(message) == PACKAGES - {"g++", "libfmt-dev"}


def test_quickstart_names_what_a_build_needs() -> None:
    page = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^ *apt-get install --no-install-recommends (.+)$", page, re.MULTILINE)
    assert set(line.split()) >= PACKAGES
    setup = (ROOT / "scripts/setup.sh").read_text(encoding="utf-8")
    for package in PACKAGES:
        assert re.search(rf"[ (]{re.escape(package)}[ )\n]", setup), package


def test_import_of_a_bare_source_folder_says_what_to_do(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "byteps_thc", tmp_path / "byteps_thc", ignore=shutil.ignore_patterns("*.so"))
    command = [sys.executable, "-c", "from byteps_thc import ServerCodes"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: {tmp_path}/byteps_thc is byteps_thc's source folder")
    assert "make setup" in last


def test_sdist_has_what_a_build_reads_and_nothing_compiled(tmp_path: Path) -> None:
    pytest.importorskip("scikit_build_core")
    code = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-P", "-c", code, str(tmp_path)], cwd=ROOT, timeout=100, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    read = {"cmake/prerequisites.cmake", "byteps_thc/csrc/thc/encode.cc", "worker_dpdk/io/dpdk_loader.cc", "LICENSE"}
    assert read <= names
    assert not [name for name in names if name.endswith((".so", ".o", ".pyc"))]
