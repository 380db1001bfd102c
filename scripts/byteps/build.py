#!/usr/bin/env python3
"""Build BytePS 0.2.5 with THC's compressor and install it for the Python that runs this. See README.md.

Usage: python scripts/byteps/build.py [--build-dir FOLDER] [--wheel-only]
"""

import argparse
import sys
import time
from pathlib import Path

from byteps_build import libraries, source, toolchain, wheel
from byteps_build.commands import BuildError, digest

REPOSITORY = Path(__file__).resolve().parents[2]

#: A change here compiles BytePS itself again; other changes only rebuild the wheel.
_BYTEPS_INPUTS = ("scripts/byteps/byteps_build", "scripts/byteps/byteps.patch", "scripts/byteps/shim")
_PLUGIN_INPUTS = (*libraries.PLUGIN_MODULES, "byteps_thc/csrc/byteps", "byteps_thc/csrc/thc", "CMakeLists.txt", "cmake")


def main() -> int:
    parser = argparse.ArgumentParser(description="Build BytePS with THC's compressor and install it")
    parser.add_argument("--build-dir", type=Path, default=REPOSITORY / "build" / "byteps", help="default: build/byteps")
    parser.add_argument("--wheel-only", action="store_true", help="leave the wheel in FOLDER/wheel, install nothing")
    arguments = parser.parse_args()
    try:
        _build(arguments.build_dir.resolve(), install=not arguments.wheel_only)
    except BuildError as error:
        print(f"byteps: {error}", file=sys.stderr)
        return 1
    return 0


def _build(folder: Path, *, install: bool) -> None:
    tools = toolchain.find()
    byteps_stamp = digest(REPOSITORY, _BYTEPS_INPUTS, tools)
    stamp = digest(REPOSITORY, _PLUGIN_INPUTS, byteps_stamp)
    if install and wheel.installed_stamp() == stamp:
        return
    tree = folder / f"byteps-{byteps_stamp[:12]}"
    shim = folder / "shim"
    logs = folder / "logs"
    setuptools = wheel.install_setuptools(folder / "tools", logs / "tools.log")
    if not tree.exists():
        _say("unpacking the source package")
        archive = source.download(folder / "sdist", setuptools, logs / "download.log")
        source.unpack(archive, tree, REPOSITORY / "scripts/byteps/byteps.patch", logs)
    _say(f"building zeromq and ps-lite; {f'CUDA is in {tools.cuda.home}' if tools.cuda else 'no CUDA here: the shim'}")
    libraries.build_zeromq(tree, tools, logs)
    libraries.build_ps_lite(tree, tools, logs)
    if tools.cuda is None:
        libraries.build_shim(REPOSITORY / "scripts/byteps/shim", shim, tools, logs)
    _say("building THC's compressor")
    libraries.build_plugin(REPOSITORY, tree, folder / "plugin", tools, logs)
    (tree / "byteps/plugins" / wheel.STAMP).write_text(f"{stamp}\ntorch {tools.torch}\n", encoding="utf-8")
    _say("building BytePS's server and torch modules (a few minutes the first time)")
    built = wheel.build(tree, folder / "wheel", shim, tools, setuptools, logs)
    if install:
        wheel.install(built, logs)
        _say(f"installed for {sys.executable}")
    else:
        _say(f"built {built}")


def _say(text: str) -> None:
    print(f"[{time.monotonic() - _START:3.0f}s] byteps: {text}", flush=True)


_START = time.monotonic()

if __name__ == "__main__":
    sys.exit(main())
