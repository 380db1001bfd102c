"""Running the programs of the build: quiet, with their output in a log that an error quotes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from byteps_build.errors import BuildError

_QUOTED_LINES = 40


def run(command: Sequence[str | Path], *, log: Path, cwd: Path, env: Mapping[str, str] | None = None) -> None:
    """Run the command with `env` added to the environment; BuildError with the end of its output when it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    words = [str(word) for word in command]
    with log.open("w", encoding="utf-8") as output:
        try:
            status = subprocess.run(
                words, cwd=cwd, env=os.environ | dict(env or {}), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            ).returncode
        except FileNotFoundError as error:
            raise BuildError(f"{words[0]} is not installed; scripts/setup.sh byteps installs what is needed") from error
    if status:
        end = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_QUOTED_LINES:])
        raise BuildError(f"{' '.join(words)} failed with status {status}; the end of {log}:\n{end}")
