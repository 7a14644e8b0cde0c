"""SGLang as it is published, importable on a machine without a GPU. Its wheel is installed alone,
without the sixty packages that it asks for; what is light is installed too (the ``test`` extra),
and the rest, which only its kernels, its front end and its loaders of models use, is stood in for
by modules of which every attribute is there and does nothing. The cache, its pools and its storage
are SGLang's own code.

Importing this module changes what can be imported in the whole process: only tests of SGLang do,
which ``make test`` runs as a process of their own, and SGLang's child of the benchmarks.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.metadata import version
from typing import Any

# Only where one is not installed; anything else that is missing fails with its name.
STOOD_IN = (
    "IPython",
    "compressed_tensors",
    "gguf",
    "openai",
    "partial_json_parser",
    "sentencepiece",
    "torchvision",
    "triton",
    "tvm_ffi",
)


class _Absent(type):
    """Classes that stand in for whatever a missing package would have under a name."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _absent(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], types.FunctionType | type) and not kwargs:
            return args[0]  # a decorator
        return super().__call__()


def _absent(name: str) -> Any:
    def again(self: object, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def any_field(cls: type, *args: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()

    body = {
        "__call__": again,
        "__getattr__": lambda self, name: getattr(type(self), name),
        "__init_subclass__": classmethod(lambda cls, **kwargs: None),
        "__get_pydantic_core_schema__": classmethod(any_field),
    }
    return _Absent(name, (), body)


class _AbsentModule(types.ModuleType):
    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _absent(name)
        setattr(self, name, found)
        return found


class _Finder(MetaPathFinder, Loader):
    """Last on the path, so that it is asked only for what is not installed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in STOOD_IN:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _AbsentModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _install() -> None:
    # What transformers is able to use is decided as if nothing were stood in.
    import transformers.utils.import_utils as answers

    for name in dir(answers):
        if name.startswith("is_") and name.endswith("_available"):
            try:
                getattr(answers, name)()
            except TypeError:  # one that takes arguments
                continue
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("sglang is not installed: run make setup")
    sys.meta_path.append(_Finder())
    # The package's own __init__ is its front end, which downloads and compiles.
    package = types.ModuleType("sglang")
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    package.__dict__["__version__"] = version("sglang")
    sys.modules["sglang"] = package


if "sglang" not in sys.modules:
    _install()
