"""Places of the switch's P4 sources."""

from pathlib import Path


def directory() -> Path:
    """Return the folder of the P4 sources: in the installed package, or the checkout's p4/programs."""
    installed = Path(__file__).parent / "data"
    return installed if installed.is_dir() else Path(__file__).parents[1] / "programs"


INCLUDE_FOLDER = directory() / "include"


def program_path(program: str) -> Path:
    """Source of a program: "v1model" or "tna"."""
    return directory() / program / f"thc_{program}.p4"
