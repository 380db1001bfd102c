"""What `thc testbed check` wants to know about a host."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def probe(programs: list[str], listens: list[str]) -> dict[str, Any]:
    """Who we are here, which of the programs are missing, and which addresses ("udp:IP:PORT") cannot be bound."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {
        "user_id": os.geteuid(),
        "host": platform.node(),
        "python": platform.python_version(),
        "byteps_thc": _version("byteps_thc"),
        "byteps": _version("byteps"),
        "thc_p4_model": _version("thc_p4_model"),
        "missing_programs": [program for program in programs if shutil.which(program, path=path) is None],
        "refused_addresses": [f"{text}: {reason}" for text in listens if (reason := _refusal(text))],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _refusal(text: str) -> str:
    kind, _, address = text.partition(":")
    ip, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM) as probing:
        if kind == "tcp":
            probing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probing.bind((ip, int(port)))
        except OSError as error:
            return error.strerror or str(error)
    return ""
