"""The list of faults: one TOML file per component in faults/."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).with_name("faults")


class ListError(Exception):
    """The list does not fit the sources; the message names every entry to change."""


@dataclass(frozen=True)
class Fault:
    """One small change that some test has to notice.

    breaks: the consequence, in words. file: the changed file, from the repository's root; old stands in it exactly once
    and becomes new. tests: the tests that must find it, tried in turn: arguments of pytest, or a C++ test program and
    optionally its --gtest_filter.
    """

    component: str
    name: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def path(self) -> str:
        """Name of the fault, with its component."""
        return f"{self.component}/{self.name}"

    def why_stale(self, root: Path) -> str | None:
        """Return the reason why the entry does not fit the tree; None: the tree has its text exactly once."""
        path = root / self.file
        times = path.read_text(encoding="utf-8").count(self.old) if path.is_file() else 0
        if times == 1:
            return None
        where = f"{self.file} has it {times} times" if path.is_file() else f"there is no {self.file}"
        return (
            f"tests/mutation/faults/{self.component}.toml: {self.name}: its old text must be there exactly once, but "
            f"{where}. Write the entry anew for what stands there now, so that it still breaks this: {self.breaks}"
        )

    def apply(self, root: Path) -> None:
        """Write the fault into the tree; ListError if its text is not there exactly once."""
        if (problem := self.why_stale(root)) is not None:
            raise ListError(problem)
        path = root / self.file
        path.write_text(path.read_text(encoding="utf-8").replace(self.old, self.new), encoding="utf-8")


def load() -> list[Fault]:
    """Read all faults, by component and name."""
    faults = [
        Fault(component=path.stem, tests=tuple(entry.pop("tests")), **entry)
        for path in sorted(FOLDER.glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]
    ]
    names = [fault.name for fault in faults]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ListError(f"two faults have the same name: {', '.join(repeated)}")
    return sorted(faults, key=lambda fault: (fault.component, fault.name))
