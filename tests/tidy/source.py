"""Reads the project's files for the tidy rules: which files there are, Python as a syntax tree, C
with its comments and strings blanked out but every line in place.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("radix", "tiers", "native", "tests", "bench")
TEXT = {".py", ".pyi", ".c", ".h", ".md", ".toml", ".txt", ".json", ".yml", ".yaml", ".cfg", ""}

_C_NOISE = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'""", re.S | re.X
)
_C_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.M)
_C_NAME = re.compile(
    r"(\w+)\s*\((?:[^()]|\([^()]*\))*\)\s*(?:__attribute__\s*\(\(.*?\)\)\s*)?$", re.S
)


@dataclass(frozen=True)
class CFunction:
    """A function definition: its name, first and last line, and whether it is static."""

    name: str
    first: int
    last: int
    is_static: bool


@dataclass(frozen=True)
class Source:
    """One file: its path from the root, with forward slashes, and its text."""

    path: str
    text: str

    @property
    def suffix(self) -> str:
        """The ending of its name, with the dot."""
        return Path(self.path).suffix

    @property
    def is_python(self) -> bool:
        """Whether it is a Python module (a stub is none)."""
        return self.suffix == ".py"

    @property
    def is_c(self) -> bool:
        """Whether it is a C source or header."""
        return self.suffix in (".c", ".h")

    def within(self, *folders: str) -> bool:
        """Tell whether it lies in one of the folders."""
        return self.path.startswith(tuple(f"{folder}/" for folder in folders))

    @cached_property
    def lines(self) -> list[str]:
        """Its lines, without their ends."""
        return self.text.splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree; only for Python."""
        return ast.parse(self.text, self.path)

    @cached_property
    def bare_c(self) -> str:
        """Its C text where comments, strings and directives are blanks; lines stay in place."""
        quiet = _C_NOISE.sub(_blank, self.text)
        return _C_DIRECTIVE.sub(_blank, quiet)

    def c_functions(self) -> Iterator[CFunction]:
        """Yield its C function definitions, found by counting braces."""
        depth, begun, opened, name = 0, 0, 0, ""
        for place in re.finditer(r"[{};]", self.bare_c):
            token = place.group()
            if token == "{":
                if depth == 0:
                    head = self.bare_c[begun : place.start()]
                    named = _C_NAME.search(head)
                    name = named.group(1) if named else ""
                    opened = begun + len(head) - len(head.lstrip())
                depth += 1
            elif token == "}":
                depth -= 1
                if depth == 0 and name:
                    yield self._c_function(name, opened, place.end())
            if depth == 0:
                begun = place.end()

    def _c_function(self, name: str, begun: int, end: int) -> CFunction:
        """Describe the function between two offsets of the bare text."""
        first = self.bare_c.count("\n", 0, begun) + 1
        last = self.bare_c.count("\n", 0, end) + 1
        head = self.bare_c[begun : self.bare_c.index("{", begun)]
        return CFunction(name, first, last, re.search(r"\bstatic\b", head) is not None)


def _blank(match: re.Match[str]) -> str:
    """Replace everything but line ends by blanks."""
    return re.sub(r"[^\n]", " ", match.group())


def project_sources() -> list[Source]:
    """Return every text file of the project: those git knows or would add, else a walk."""
    return [
        Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(_project_paths())
        if path.suffix in TEXT and path.is_file() and path.name != "LICENSE"
    ]


def _project_paths() -> Iterator[Path]:
    """Yield the project's files, without what it builds."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (ROOT / ".git").exists():
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
        yield from (ROOT / name for name in listed.stdout.split("\0") if name)
        return
    yield from (path for path in ROOT.iterdir() if path.is_file())
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if "__pycache__" not in path.parts:
                yield path
