"""The mutations of our own code, as mutants.toml lists them: a fault each that somebody could make,
the invariant that it breaks, and the tests that must notice. What is listed applies to the code as
it stands, or is refused: a list that rots proves nothing.
"""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("mutants.toml")
SECTIONS = {
    "structure": range(1, 7),
    "ownership": range(7, 12),
    "counters": range(12, 16),
    "eviction": range(16, 20),
    "tiers": range(20, 26),
    "parts": range(26, 30),
    "lifecycle": range(30, 36),
}


class RottenError(Exception):
    """A mutation that does not apply to the code as it stands, or names a test that is not."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """``before`` becomes ``after`` in ``file``, and each of ``tests`` must fail."""

    name: str
    file: str
    before: str
    after: str
    invariant: str
    tests: tuple[str, ...]

    @property
    def native(self) -> bool:
        """Whether it is of what has to be compiled."""
        return self.file.startswith("native/")

    @property
    def section(self) -> str:
        """The section of the invariants that it is about. ``RottenError``."""
        number = int(self.invariant.removeprefix("I"))
        for section, numbers in SECTIONS.items():
            if number in numbers:
                return section
        raise RottenError(f"{self.name}: {self.invariant} is no invariant")

    def applied(self, root: Path) -> str:
        """The text of its file under ``root`` with the fault. ``RottenError``."""
        path = root / self.file
        text = path.read_text() if path.is_file() else ""
        count = text.count(self.before)
        if count != 1:
            raise RottenError(f"{self.name}: {self.file} has its text {count} times, not once")
        if self.before == self.after:
            raise RottenError(f"{self.name}: it changes nothing")
        return text.replace(self.before, self.after)

    def check(self, root: Path) -> None:
        """That it applies and its tests are there. ``RottenError``."""
        self.applied(root)
        if not self.section or not self.tests:
            raise RottenError(f"{self.name}: no test is named")
        for test in self.tests:
            file, _, function = test.partition("::")
            path, function = root / file, function.partition("[")[0]
            tree = ast.parse(path.read_text()) if path.is_file() else ast.parse("")
            names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
            if function not in names:
                raise RottenError(f"{self.name}: there is no test {test}")


def mutations(listed: Path = LIST) -> list[Mutation]:
    """All of them, in the order of the list. ``RottenError`` for two of one name."""
    found = [
        Mutation(**{**entry, "tests": tuple(entry["tests"])})
        for entry in tomllib.loads(listed.read_text())["mutant"]
    ]
    names = [each.name for each in found]
    for name in set(names):
        if names.count(name) > 1:
            raise RottenError(f"{name}: two mutations have this name")
    return found
