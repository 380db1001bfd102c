"""BytePS's wheel, and its place in the environment of the running interpreter."""

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from byteps_build.commands import BuildError, run
from byteps_build.toolchain import Toolchain

_PIP: tuple[str | Path, ...] = (sys.executable, "-m", "pip")

#: File in byteps/plugins. First line: the stamp of the package's inputs; second line: its torch.
STAMP = "build.txt"


def install_setuptools(folder: Path, log: Path) -> dict[str, str]:
    """Install a setuptools that can build wheels, once, and return the variables with which pip finds it.

    It has a separate folder: packages of the environment stay unchanged.
    """
    marker = folder / "complete"
    if not marker.exists():
        folder.mkdir(parents=True, exist_ok=True)
        packages = ["--quiet", "--upgrade", "--target", str(folder), "setuptools>=70.1,<85"]
        run([*_PIP, "install", *packages], log=log, cwd=folder)
        marker.touch()
    return {"PYTHONPATH": str(folder)}


def build(source: Path, folder: Path, shim: Path, toolchain: Toolchain, tools: Mapping[str, str], logs: Path) -> Path:
    """Build the wheel with BytePS's setup.py (modules server and torch only) and return its path.

    tools: of install_setuptools().
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    pip_wheel = [*_PIP, "wheel", "--no-build-isolation", "--use-pep517", "--no-deps", "--wheel-dir", folder, source]
    environment = toolchain.compilers | _settings(shim, toolchain) | dict(tools)
    environment |= {"CFLAGS": "-g0", "CXXFLAGS": "-g0"}  # Python's own flags may ask for debugging symbols
    environment |= {"CCACHE_BASEDIR": str(source), "CCACHE_NOHASHDIR": "1"}  # unpacked elsewhere, it is the same source
    run(pip_wheel, log=logs / "wheel.log", cwd=folder, env=environment)
    (wheel,) = folder.glob("byteps-*.whl")
    return wheel


def _settings(shim: Path, toolchain: Toolchain) -> dict[str, str]:
    settings = {"BYTEPS_WITHOUT_TENSORFLOW": "1", "BYTEPS_WITHOUT_MXNET": "1", "BYTEPS_WITH_PYTORCH": "1", "CI": "true"}
    cuda = toolchain.cuda
    if cuda is None:
        return settings | {"BYTEPS_WITH_CUDA": "0", "BYTEPS_NCCL_HOME": str(shim), "BYTEPS_NCCL_LINK": "STATIC"}
    link = "SHARED" if cuda.nccl_shared else "STATIC"
    places = {"BYTEPS_NCCL_HOME": cuda.nccl_home, "BYTEPS_CUDA_HOME": cuda.home, "CUDA_HOME": cuda.home}
    return settings | {"BYTEPS_WITH_CUDA": "1", "BYTEPS_NCCL_LINK": link} | {k: str(v) for k, v in places.items()}


def installed_stamp() -> str | None:
    """Return the stamp of the installed byteps; None without one, or for another build."""
    spec = importlib.util.find_spec("byteps")
    for location in (spec.submodule_search_locations or []) if spec else []:
        stamp = Path(location) / "plugins" / STAMP
        if stamp.exists():
            return stamp.read_text(encoding="utf-8").partition("\n")[0]
    return None


def install(wheel: Path, logs: Path) -> None:
    """Install the wheel into the environment of the running interpreter and import its modules there."""
    pip_install = [*_PIP, "install", "--quiet", "--no-deps", "--force-reinstall", wheel]
    run(pip_install, log=logs / "install.log", cwd=wheel.parent)
    try:
        run([sys.executable, "-c", "import byteps.torch"], log=logs / "import.log", cwd=Path(os.sep))
    except BuildError as error:
        raise BuildError(f"byteps was built and installed, but does not import: {error}") from error
