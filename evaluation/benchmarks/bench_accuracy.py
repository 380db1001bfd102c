"""Error of the average gradient by the package's kernels, from the paper to what ranks can do, part by part.

All average the same gradients in one process. NMSE: |average - exact average|^2 / |exact average|^2.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from averages.alternatives import ABLATION, ablation, nmse
from section import publish, table


def cells() -> list[list[str]]:
    """A heading, then a part in each line: NMSE x 1e-3 and bits up + down."""
    found = [["NMSE x 1e-3 (bits up + down)", *(f"{kind}, {workers} workers" for kind, workers in ABLATION)]]
    for what, schemes in ablation():
        figures = [
            f"{nmse(scheme, *case) * 1e3:.2f} ({int(scheme.bits_up)} + {int(scheme.bits_down)})"
            for scheme, case in zip(schemes, ABLATION, strict=True)
        ]
        found.append([what, *figures])
    return found


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    publish(table(cells()), args.json)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
