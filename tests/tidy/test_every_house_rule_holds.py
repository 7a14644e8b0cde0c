"""The house rules over the whole project, and for each rule texts that it must refuse and texts
that it must let pass: a rule that cannot fail holds nothing.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.tidy.rules import RULES
from tests.tidy.source import Source, project_sources

LONG_BODY = "    x = 1\n" * 70
LONG_C_BODY = "    x = 1;\n" * 70

REFUSED: list[tuple[int, str, str]] = [
    (1, "radix/tree.py", f"def walk():\n{LONG_BODY}"),
    (1, "tests/unit/test_a.py", f"class A:\n  async def walk():\n{LONG_BODY}"),
    (1, "native/src/tree.c", f"static int\nrdx_walk(int x)\n{{\n{LONG_C_BODY}}}\n"),
    (
        1,
        "native/src/tree.c",
        f"struct a {{ int x; }};\nint rdx_w(int (*f)(int))\n{{\n{LONG_C_BODY}}}",
    ),
    (2, "radix/tree.py", "x = 1\n" * 501),
    (2, "native/src/tree.c", "\n" * 801),
    (2, "native/fastcall.c", "\n" * 301),
    (3, "radix/tree.py", "x = '" + "a" * 100 + "'\n"),
    (3, "native/include/rdx.h", "// " + "a" * 98 + "\n"),
    (4, "native/src/tree.c", "#include <Python.h>\n"),
    (4, "native/include/rdx.h", '# include "Python.h"\n'),
    (5, "radix/tree.py", "class TierManager: pass\n"),
    (5, "radix/utils.py", ""),
    (5, "radix/tree.py", "def inc_lock_ref(): pass\n"),
    (5, "tiers/disk.py", "def f(*, extra_config): pass\n"),
    (5, "tiers/disk.py", "self.is_swa = True\n"),
    (5, "tiers/disk.py", "for helper in (): pass\n"),
    (5, "tiers/disk.py", "import os as utils\n"),
    (5, "radix/engines/a/spec.py", "def get_managers(): pass\n"),
    (5, "native/src/tree.c", "int rdx_common_walk(void);\n"),
    (6, "radix/tree.py", "try: pass\nexcept Exception: pass\n"),
    (6, "tests/unit/test_a.py", "try: pass\nexcept: pass\n"),
    (6, "radix/tree.py", "try: pass\nexcept (ValueError, BaseException) as e: pass\n"),
    (7, "README.md", "TO" + "DO: write this\n"),
    (7, "native/src/tree.c", "/* FIX" + "ME */\n"),
    (7, "radix/tree.py", "# XX" + "X\n"),
    (8, "README.md", "see `/wo" + "rk/shared/notes`\n"),
    (8, "tests/unit/test_a.py", "open('/ro" + "ot/x')\n"),
    (9, "tests/unit/test_a.py", "x = 1\n"),
    (9, "radix/tree.py", '"""M."""\ndef walk(): pass\n'),
    (9, "radix/tree.py", '"""M."""\nclass A: pass\n'),
    (9, "tiers/disk.py", '"""M."""\nclass A:\n  """A."""\n  def f(self): pass\n'),
    (9, "tiers/disk.py", '"""M."""\nclass A:\n  """A."""\n  @property\n  def f(self): pass\n'),
    (10, "radix/tree.py", "import time\n"),
    (10, "radix/policy/eviction.py", "def f():\n    from random import Random\n"),
    (11, "radix/cache.py", "import torch\n"),
    (11, "radix/cache.py", "def f():\n    import lmdb\n"),
    (11, "tiers/disk.py", "from rich.table import Table\n"),
    (11, "radix/replay/run.py", "import matplotlib.pyplot\n"),
    (11, "radix/keys.py", "import xxhash\n"),
    (11, "tiers/disk.py", "from tests.model import Model\n"),
    (11, "radix/cache.py", "import bench.run\n"),
    (12, "radix/cache.py", "from . import tree\n"),
    (13, "tests/unit/test_tree.py", ""),
    (13, "tests/unit/test_match_on_an_edge.py", "def test_match(): pass\n"),
    (14, "tests/unit/test_a.py", "from unittest.mock import Mock\n"),
    (15, "native/src/tree.c", "int walk(void) { return 0; }\n"),
    (16, "radix/tree.py", "x = f()  # type: ignore\n"),
    (16, "radix/tree.py", "x = f()  # type: ignore[misc]\n"),
    (16, "radix/tree.py", "x = f()  # noqa\n"),
    (6, "tiers/disk.py", "try: pass\nexcept Exception as e:\n  raise ValueError from e\n"),
]

ALLOWED: list[tuple[int, str, str]] = [
    (1, "radix/tree.py", "def walk():\n" + "    x = 1\n" * 69),
    (1, "native/src/tree.c", "int rdx_w(void) {\n" + "    x = 1;\n" * 68 + "}\n"),
    (1, "native/src/tree.c", "static const int t[] = {\n" + "    1,\n" * 90 + "};\n"),
    (1, "native/src/tree.c", "struct big {\n" + "    int x;\n" * 90 + "};\n"),
    (1, "native/src/tree.c", "int f(void) { return '{'; } // {\n" + "int x;\n" * 90 + "/* } */\n"),
    (2, "radix/tree.py", "x = 1\n" * 500),
    (2, "tests/golden/a.json", "1\n" * 900),
    (4, "native/fastcall.c", "#include <Python.h>\n"),
    (5, "radix/tree.py", "from contextlib import AbstractContextManager, contextmanager\n"),
    (5, "radix/tree.py", "commonly = uncommon = 1\n"),
    (5, "native/src/tree.c", "/* a common prefix */ int rdx_walk(void);\n"),
    (5, "radix/engines/a/spec.py", "def get_manager(extra_config): pass\n"),
    (5, "tests/unit/test_a.py", "helper = 1\n"),
    (
        6,
        "tiers/disk.py",
        "try: pass\nexcept Exception as e:  # outermost: goes to the ring\n  r(e)\n",
    ),
    (6, "tiers/disk.py", "try: pass\nexcept ValueError: pass\n"),
    (6, "tiers/disk.py", "try: pass\nexcept BaseException:\n  give_back()\n  raise\n"),
    (8, "README.md", "https://example.org/home/x ./work/x ~/work/x a/root/b\n"),
    (9, "tests/unit/test_a.py", '"""M."""\ndef test_a(): pass\n'),
    (9, "radix/tree.py", '"""M."""\ndef _walk(): pass\nclass _A:\n  def f(self): pass\n'),
    (9, "radix/tree.py", '"""M."""\ndef f():\n  """F."""\n  def g(): pass\n'),
    (10, "radix/replay/run.py", "import time\n"),
    (10, "radix/cli.py", "import signal\n"),
    (10, "radix/commands/serve.py", "import signal\n"),
    (11, "radix/commands/top.py", "import rich\n"),
    (10, "tiers/disk.py", "import threading\n"),
    (11, "tiers/device.py", "import torch\n"),
    (11, "tiers/disk.py", "import lmdb\nimport numpy\nimport os\nfrom radix.keys import Key\n"),
    (11, "radix/replay/plots.py", "import matplotlib\n"),
    (13, "tests/unit/test_match_on_an_edge.py", "def test_match_changes_nothing(): pass\n"),
    (
        15,
        "native/src/tree.c",
        "static int walk(void) { return 0; }\nint rdx_walk(void) { return 0; }\n",
    ),
    (16, "radix/tree.py", "x = f()  # type: ignore[misc]  # lmdb has no types\n"),
    (16, "radix/tree.py", "x = '# noqa'\n"),
]


@cache
def _sources() -> list[Source]:
    return project_sources()


@pytest.mark.parametrize("number", RULES)
def test_the_project_keeps_the_rule(number: int) -> None:
    faults = [fault for source in _sources() for fault in RULES[number](source)]
    assert not faults, f"{RULES[number].__doc__}\n" + "\n".join(faults)


@pytest.mark.parametrize(("number", "path", "text"), REFUSED)
def test_the_rule_refuses_what_breaks_it(number: int, path: str, text: str) -> None:
    assert list(RULES[number](Source(path, text)))


@pytest.mark.parametrize(("number", "path", "text"), ALLOWED)
def test_the_rule_lets_pass_what_keeps_it(number: int, path: str, text: str) -> None:
    assert not list(RULES[number](Source(path, text)))


def test_every_rule_has_a_text_that_it_refuses() -> None:
    assert sorted(RULES) == sorted({number for number, _, _ in REFUSED})
    assert sorted(RULES) == list(range(1, len(RULES) + 1))


def test_the_search_for_sources_finds_every_folder() -> None:
    paths = {source.path for source in _sources()}
    assert {"Makefile", "pyproject.toml", "native/build_ffi.py", "native/include/rdx.h"} <= paths
    assert {"radix/__init__.py", "tiers/__init__.py", "tests/tidy/rules.py", ".ci/run"} <= paths
