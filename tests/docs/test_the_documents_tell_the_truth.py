"""What the documents say is so: their Python runs, their links lead somewhere, the commands that
they name exist, and every doctest of the library passes.
"""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCUMENTS = sorted(ROOT.glob("*.md"))
PAGES = sorted((ROOT / "docs").glob("**/*.md"))
# Those of engines need the engines.
RUNNING = [*DOCUMENTS, ROOT / "docs" / "policies.md"]

_BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.M | re.S)
_LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
_MAKE = re.compile(r"\bmake ([a-z][a-z-]*)\b")
_COMMAND = re.compile(r"`[^`]*`|^```.*?^```", re.M | re.S)


def python_blocks(text: str) -> list[str]:
    """Return the Python blocks of a document."""
    return _BLOCK.findall(text)


def dead_links(document: Path, text: str) -> list[str]:
    """Return the relative links of a document that lead nowhere."""
    targets = [target for target in _LINK.findall(text) if "://" not in target]
    return [target for target in targets if not (document.parent / target).exists()]


def unknown_targets(text: str, makefile: str) -> list[str]:
    """Return the make targets that a document names as commands and the Makefile lacks."""
    commands = "\n".join(_COMMAND.findall(text))
    return [name for name in _MAKE.findall(commands) if not re.search(rf"^{name}:", makefile, re.M)]


BLOCKS = [
    pytest.param(block, id=f"{document.name}-{number}")
    for document in RUNNING
    for number, block in enumerate(python_blocks(document.read_text()), 1)
]


def test_the_readme_exists_and_shows_python() -> None:
    assert README.exists(), "README.md is missing"
    assert python_blocks(README.read_text()), "README.md has no ```python block"


@pytest.mark.parametrize("block", BLOCKS)
def test_the_code_of_a_document_runs_as_it_stands(block: str, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    script = tmp_path / "block.py"
    script.write_text(block)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("document", [*DOCUMENTS, *PAGES], ids=lambda path: path.name)
def test_the_links_and_commands_of_a_document_exist(document: Path) -> None:
    text = document.read_text()
    assert not dead_links(document, text)
    assert not unknown_targets(text, (ROOT / "Makefile").read_text())


def test_the_readme_opens_with_a_sentence_and_the_two_commands() -> None:
    assert README.exists(), "README.md is missing"
    text = README.read_text()
    first = text.index("```")
    opening = text[first : text.index("```", first + 3)]
    assert "make demo" in opening and "make test" in opening


MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in ("radix", "tiers")
    for path in (ROOT / package).rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_come_out_as_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.attempted > 0 and found.failed == 0


def test_each_check_of_a_document_refuses_what_it_must(tmp_path: Path) -> None:
    text = "see [a](gone.md), [b](here.md), [c](https://x.y/z)\n`make fly` and make haste\n"
    (tmp_path / "here.md").write_text("```python\nx = 1\n```\n```sh\nls\n```\n")
    assert dead_links(tmp_path / "doc.md", text) == ["gone.md"]
    assert unknown_targets(text, "test: setup\n") == ["fly"]
    assert python_blocks((tmp_path / "here.md").read_text()) == ["x = 1\n"]
