"""This host's build tools: compilers, torch, and CUDA with NCCL or the shim instead."""

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from byteps_build.commands import BuildError


@dataclass(frozen=True)
class Cuda:
    home: Path
    nccl_home: Path
    nccl_shared: bool  # libnccl.so rather than libnccl_static.a


@dataclass(frozen=True)
class Toolchain:
    """All inputs of a build outside the sources; its `repr` is part of the build's stamp."""

    compiler: str  # first line of g++ --version
    ccache: bool
    python: str
    torch: str
    cxx11_abi: bool
    rdma: bool  # has librdmacm's headers: BytePS then gets its RDMA van
    cuda: Cuda | None  # None: the shim

    @property
    def compilers(self) -> dict[str, str]:
        prefix = "ccache " if self.ccache else ""
        return {"CC": f"{prefix}gcc", "CXX": f"{prefix}g++"}


def find() -> Toolchain:
    if shutil.which("g++") is None or shutil.which("make") is None:
        raise BuildError("g++ and make are needed; scripts/setup.sh byteps installs them on Debian")
    if not _has_header("numa.h"):
        raise BuildError("numa.h is not there; on Debian: apt install libnuma-dev")
    try:
        import torch
    except ImportError as error:
        raise BuildError(
            f"BytePS's torch module is built for the torch of {sys.executable}, and it has none"
        ) from error
    version = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout
    return Toolchain(
        compiler=version.splitlines()[0],
        ccache=shutil.which("ccache") is not None,
        python=f"{sysconfig.get_platform()} {sys.version}",
        torch=f"{torch.__version__} {torch.version.git_version}",
        cxx11_abi=torch.compiled_with_cxx11_abi(),
        rdma=_has_header("rdma/rdma_cma.h"),
        cuda=find_cuda(torch.version.cuda),
    )


def _has_header(header: str) -> bool:
    preprocess = ["g++", "-E", "-x", "c++", "-", "-o", os.devnull]
    return subprocess.run(preprocess, input=f"#include <{header}>\n", text=True, capture_output=True).returncode == 0


def find_cuda(torch_cuda: str | None) -> Cuda | None:
    """Return CUDA and NCCL for torch's CUDA version; None for a CPU build of torch or without a CUDA toolkit.

    A toolkit without NCCL is an error: the shim moves no data between GPUs.
    """
    if torch_cuda is None:
        return None
    nvcc = shutil.which("nvcc")
    beside_nvcc = nvcc and Path(nvcc).resolve().parents[1]
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("BYTEPS_CUDA_HOME"), beside_nvcc, "/usr/local/cuda"]
    toolkits = [Path(home) for home in homes if home and (Path(home) / "include/cuda_runtime.h").exists()]
    if not toolkits:
        return None
    home = toolkits[0]
    nccl_homes = [os.environ.get("BYTEPS_NCCL_HOME"), os.environ.get("NCCL_HOME"), _wheel_of_nccl(), home, "/usr"]
    for nccl_home in (Path(h) for h in nccl_homes if h):
        if (nccl_home / "include/nccl.h").exists():
            return Cuda(home, nccl_home, nccl_shared=not list(nccl_home.glob("lib*/**/libnccl_static.a")))
    raise BuildError(f"CUDA is in {home}, but nccl.h was not found; set BYTEPS_NCCL_HOME")


def _wheel_of_nccl() -> str | None:
    folder = Path(sysconfig.get_path("purelib")) / "nvidia" / "nccl"
    return str(folder) if folder.is_dir() else None
