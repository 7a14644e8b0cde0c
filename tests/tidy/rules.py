"""The house rules that a program can hold, by number. A rule takes one source and yields its
faults as ``path:line: what is wrong``; it judges only the sources it is for.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator

from tests.tidy.source import Source

Rule = Callable[[Source], Iterator[str]]

FUNCTION_LINES = 70
PYTHON_LINES = 500
C_LINES = 800
FASTCALL_LINES = 300
COLUMNS = 100

FASTCALL = "native/fastcall.c"
NAMED_CODE = ("radix", "tiers", "native")
PROGRAMS = (
    *["radix/replay/", "radix/engines/", "radix/service/", "radix/commands/"],
    "radix/cli.py",
)

BANNED_WORDS = [
    *["lock_ref", "backup", "backuped", "backed_up", "load_back", "manager", "managers"],
    *["util", "utils", "helper", "helpers", "common", "misc", "is_swa", "is_mamba"],
    "extra_config",
]
# Names that an engine's base class dictates: an adapter that gave others would not be called.
ENGINES = "radix/engines/"
ENGINE_NAMES = {"get_manager", "extra_config", "inc_lock_ref", "dec_lock_ref"}
MARKS = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
MACHINE_PATH = re.compile(r"(?<![\w.~/-])/(?:work|root|home|opt)/")
OUTERMOST = "# outermost:"

IMPURE = {
    *["asyncio", "concurrent", "datetime", "multiprocessing", "queue", "random", "secrets"],
    *["selectors", "signal", "socket", "subprocess", "threading", "time", "uuid"],
}
# Where a package that is not always installed, or that loads slowly, may be imported.
PLACES = {
    "numpy": re.compile(r"(radix|tiers)/"),
    "cffi": re.compile(r"(radix|tiers)/"),
    "lmdb": re.compile(r"tiers/"),
    "torch": re.compile(r"tiers/device|radix/engines/"),
    "rich": re.compile(r"radix/(commands|replay)/"),
    "matplotlib": re.compile(r"radix/.*plot[^/]*\.py"),
    "vllm": re.compile(r"radix/engines/"),
    "sglang": re.compile(r"radix/engines/"),
    "transformers": re.compile(r"radix/engines/"),
    "mooncake": re.compile(r"tiers/remote"),
    "redis": re.compile(r"tiers/remote"),
    "prometheus_client": re.compile(r"radix/service/"),
    "zmq": re.compile(r"radix/service/"),
    "msgspec": re.compile(r"radix/service/"),
}


def rule_1_functions_are_short(source: Source) -> Iterator[str]:
    """A function, in Python or C, has at most 70 lines."""
    spans: list[tuple[str, int, int]] = []
    if source.is_python:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                spans.append((node.name, node.lineno, node.end_lineno or node.lineno))
    elif source.is_c:
        spans = [(found.name, found.first, found.last) for found in source.c_functions()]
    for name, first, last in spans:
        if last - first + 1 > FUNCTION_LINES:
            yield f"{source.path}:{first}: {name} has {last - first + 1} lines"


def rule_2_files_are_short(source: Source) -> Iterator[str]:
    """A Python file has at most 500 lines, a C file 800, fastcall.c 300."""
    limit = PYTHON_LINES if source.is_python else C_LINES
    if source.path == FASTCALL:
        limit = FASTCALL_LINES
    if (source.is_python or source.is_c) and len(source.lines) > limit:
        yield f"{source.path}:{limit}: has {len(source.lines)} lines, the limit is {limit}"


def rule_3_lines_are_narrow(source: Source) -> Iterator[str]:
    """A line of code has at most 100 columns."""
    if source.is_python or source.is_c or source.suffix == ".pyi":
        for number, line in enumerate(source.lines, 1):
            if len(line) > COLUMNS:
                yield f"{source.path}:{number}: {len(line)} columns"


def rule_4_python_h_stands_in_one_file(source: Source) -> Iterator[str]:
    """Only native/fastcall.c includes Python.h."""
    if source.is_c and source.path != FASTCALL:
        for number, line in enumerate(source.lines, 1):
            if re.match(r"\s*#\s*include\s*[<\"]Python\.h", line):
                yield f"{source.path}:{number}: includes Python.h"


def rule_5_names_keep_the_vocabulary(source: Source) -> Iterator[str]:
    """No name that we give, of a file or in it, holds a word that says nothing."""
    if not source.within(*NAMED_CODE) or not (source.is_python or source.is_c):
        return
    names = [(1, part) for part in re.split(r"[/.]", source.path)]
    names += _python_names(source.tree) if source.is_python else _c_names(source.bare_c)
    for number, name in names:
        if name in ENGINE_NAMES and source.path.startswith(ENGINES):
            continue
        for word in BANNED_WORDS:
            if f"_{word}_" in f"_{_snake(name)}_":
                yield f"{source.path}:{number}: {name} holds the word {word}"


def _python_names(tree: ast.Module) -> list[tuple[int, str]]:
    """Return the names that a module gives; those it takes from elsewhere are not its own."""
    names: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.append((node.lineno, node.name))
            case ast.arg():
                names.append((node.lineno, node.arg))
            case ast.Name(ctx=ast.Store()):
                names.append((node.lineno, node.id))
            case ast.Attribute(ctx=ast.Store()):
                names.append((node.lineno, node.attr))
            case ast.alias(asname=str(given)):
                names.append((node.lineno, given))
    return names


def _c_names(text: str) -> list[tuple[int, str]]:
    """Return every identifier of a C text once, with the line where it stands first."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        for name in re.findall(r"[A-Za-z_]\w*", line):
            found.setdefault(name, number)
    return [(number, name) for name, number in found.items()]


def _snake(name: str) -> str:
    """Return a name in lower case with underscores between its words."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def rule_6_no_exception_is_swallowed(source: Source) -> Iterator[str]:
    """Exceptions are caught by class, but at a thread's outermost line or to raise them again."""
    if not source.is_python:
        return
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ExceptHandler) or not _catches_all(node.type):
            continue
        last = node.body[-1]
        raises_again = isinstance(last, ast.Raise) and last.exc is None
        if not raises_again and OUTERMOST not in source.lines[node.lineno - 1]:
            yield f"{source.path}:{node.lineno}: catches every exception"


def _catches_all(kind: ast.expr | None) -> bool:
    """Tell whether a handler's type lets nothing pass."""
    if kind is None:
        return True
    parts = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(isinstance(p, ast.Name) and p.id in ("Exception", "BaseException") for p in parts)


def rule_7_nothing_is_left_for_later(source: Source) -> Iterator[str]:
    """No file holds a mark of unfinished work."""
    for number, line in enumerate(source.lines, 1):
        if MARKS.search(line):
            yield f"{source.path}:{number}: {line.strip()}"


def rule_8_no_path_of_a_machine(source: Source) -> Iterator[str]:
    """No file names a folder of the machine where it was written."""
    for number, line in enumerate(source.lines, 1):
        if MACHINE_PATH.search(line):
            yield f"{source.path}:{number}: {line.strip()}"


def rule_9_public_things_are_explained(source: Source) -> Iterator[str]:
    """A module opens with a docstring; so does what radix and tiers offer."""
    if not source.is_python:
        return
    if ast.get_docstring(source.tree) is None:
        yield f"{source.path}:1: the module has no docstring"
    if source.within("radix", "tiers"):
        for node in _public_definitions(source.tree.body):
            if ast.get_docstring(node) is None:
                yield f"{source.path}:{node.lineno}: {node.name} has no docstring"


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _public_definitions(body: list[ast.stmt]) -> Iterator[Definition]:
    """Yield public functions, classes and their methods; an overload or a setter has its twin."""
    for node in body:
        if not isinstance(node, Definition) or node.name.startswith("_"):
            continue
        if isinstance(node, ast.ClassDef):
            yield node
            yield from _public_definitions(node.body)
        elif not any(
            (isinstance(mark, ast.Name) and mark.id == "overload")
            or (isinstance(mark, ast.Attribute) and mark.attr in ("setter", "overload"))
            for mark in node.decorator_list
        ):
            yield node


def rule_10_the_control_plane_is_pure(source: Source) -> Iterator[str]:
    """What decides has no clock, thread, chance or process of its own: they are passed in."""
    if not source.is_python or not source.within("radix") or source.path.startswith(PROGRAMS):
        return
    for number, name in _imports(source.tree):
        if name.split(".")[0] in IMPURE:
            yield f"{source.path}:{number}: imports {name}"


def rule_11_packages_are_imported_in_their_place(source: Source) -> Iterator[str]:
    """Each optional package is imported only where it is at home, others nowhere."""
    if not source.is_python or not source.within("radix", "tiers"):
        return
    for number, name in _imports(source.tree):
        top = name.split(".")[0]
        if top in sys.stdlib_module_names or top in ("radix", "tiers"):
            continue
        if top not in PLACES or not PLACES[top].match(source.path):
            yield f"{source.path}:{number}: imports {name}"


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and module of every import, also of those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")


def rule_12_imports_are_absolute(source: Source) -> Iterator[str]:
    """An import names its module in full, so that a reader can search for it."""
    if source.is_python:
        for number, name in _imports(source.tree):
            if name.startswith("."):
                yield f"{source.path}:{number}: imports {name}"


def rule_13_tests_are_sentences(source: Source) -> Iterator[str]:
    """A test, and the file it stands in, is named by what holds: three words or more."""
    if not source.is_python or not source.within("tests"):
        return
    name = source.path.rsplit("/", 1)[-1].removesuffix(".py")
    if name.startswith("test_") and name.count("_") < 3:
        yield f"{source.path}:1: {name} is no sentence"
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        if node.name.count("_") < 3:
            yield f"{source.path}:{node.lineno}: {node.name} is no sentence"


def rule_14_tests_run_the_real_thing(source: Source) -> Iterator[str]:
    """No test imports mocks."""
    if source.is_python and source.within("tests"):
        for number, name in _imports(source.tree):
            if name.startswith(("unittest.mock", "mock", "pytest_mock")):
                yield f"{source.path}:{number}: imports {name}"


def rule_15_c_names_carry_the_prefix(source: Source) -> Iterator[str]:
    """A C function that other files can see is named rdx_..."""
    if not source.is_c or not source.within("native") or source.within("native/tests"):
        return
    for found in source.c_functions():
        if not found.is_static and not found.name.startswith("rdx_"):
            yield f"{source.path}:{found.first}: {found.name} lacks the prefix rdx_"


def rule_16_an_ignored_check_is_justified(source: Source) -> Iterator[str]:
    """What silences mypy or ruff names the check and says why."""
    if not source.is_python:
        return
    silences = re.compile(r"# *(?:type: *ignore|noqa)")
    justified = re.compile(
        r"# (?:type: ignore\[[\w, -]+\]|noqa: [A-Z]+\d+(?:, ?[A-Z]+\d+)*) +# ?\w"
    )
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        is_comment = token.type == tokenize.COMMENT and silences.match(token.string)
        if is_comment and not justified.match(token.string):
            yield f"{source.path}:{token.start[0]}: {token.string}"


RULES: dict[int, Rule] = dict(
    sorted(
        (int(name.split("_")[1]), rule)
        for name, rule in globals().items()
        if name.startswith("rule_")
    )
)
