"""Checks of what runs that were killed have left on this host. The next run removes it, too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from byteps_thc._cli.doctor.finding import Finding, State
from byteps_thc._net.byteps import leftover_memory


def check_shared_memory(folder: Path = leftover_memory.FOLDER) -> Sequence[Finding]:
    """Gradients of BytePS workers."""
    name, sizes_bytes = "left-over gradients", []
    for path in leftover_memory.find(folder):
        try:
            sizes_bytes.append(path.stat().st_size)
        except OSError:  # gone meanwhile
            continue
    if not sizes_bytes:
        return [Finding(name, State.OK, f"none of BytePS workers in {folder}")]
    mib = sum(sizes_bytes) / (1 << 20)
    meaning = f"{len(sizes_bytes)} files, {mib:.1f} MiB, in {folder}; the next bpslaunch removes them"
    return [Finding(name, State.PROBLEM, meaning, f"python -m {leftover_memory.__name__}")]
