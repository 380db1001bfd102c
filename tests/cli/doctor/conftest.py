"""Environments for the doctor's tests."""

import sys
import sysconfig
import venv

import pytest


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of a virtual environment that sees our packages, and has no thc-ps beside it."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    libraries = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    ours = sysconfig.get_path("purelib")
    (libraries / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return str(folder / "bin" / "python")
