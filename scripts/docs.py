"""Write the API reference, made from the docstrings, into build/docs (make docs). Needs pdoc."""

from __future__ import annotations

import argparse
import contextlib
import warnings
from pathlib import Path

import pdoc
import pdoc.render

ROOT = Path(__file__).resolve().parents[1]
#: What users import. `!`: neither the module nor what is below it.
MODULES = [
    "byteps_thc",
    "byteps_thc.averager",
    "byteps_thc.baselines",
    "byteps_thc.checkpoint",
    "byteps_thc.compressor",
    "byteps_thc.config",
    "byteps_thc.ddp",
    "byteps_thc.pipeline",
    "byteps_thc.errors",
    "byteps_thc.fsdp",
    "byteps_thc.ops",
    "byteps_thc.reducer",
    "byteps_thc.tools.launch",
    "byteps_thc.transport.session",
    "byteps_thc.tables",
    "byteps_thc.torch",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "build/docs")
    args = parser.parse_args()
    from byteps_thc import ThcReducer  # noqa: F401  # pdoc does not see what is imported when it is asked for

    warnings.simplefilter("error")  # a link or an annotation that does not resolve
    # pdoc looks for the inherited keys of a TypedDict in its bases, which it has not.
    warnings.filterwarnings("ignore", message=r"Cannot determine where byteps_thc\..*ThcSettings\.")
    pdoc.render.configure(show_source=False)
    output = args.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    # Elsewhere than here, where pdoc would wonder whether byteps_thc means the folder.
    with contextlib.chdir(output):
        pdoc.pdoc(*MODULES, output_directory=output)
    print(f"wrote {args.output}/index.html")


if __name__ == "__main__":
    main()
