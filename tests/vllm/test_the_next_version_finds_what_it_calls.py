"""vLLM 0.33, which no package runs on a CPU, is read: its base classes are parsed, and our classes
define what is abstract there and take what its callers pass. Checked, not run."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest

from radix.engines.vllm import RadixDiskTier, RadixOffloadingSpec
from radix.engines.vllm.offload import Offload
from radix.engines.vllm.worker import Worker
from tests.vllm.upstream import source

VERSION = "0.33.0"
BASE = "vllm/v1/kv_offload/base.py"
TIERING = "vllm/v1/kv_offload/tiering/base.py"
OURS: dict[str, tuple[str, type]] = {
    "OffloadingSpec": (BASE, RadixOffloadingSpec),
    "OffloadingManager": (BASE, Offload),
    "OffloadingWorker": (BASE, Worker),
    "SecondaryTierManager": (TIERING, RadixDiskTier),
}
# What this version calls and the one before it did not have.
NEW = {
    "OffloadingManager": ("lock", "on_reset_flushed", "config_info"),
    "OffloadingWorker": ("submit_load",),
}
# Values that we make: the fields that we name.
MADE = {
    "PrepareStoreOutput": (BASE, ("keys_to_store", "store_spec", "evicted_keys")),
    "OffloadingEvent": (BASE, ("keys", "medium", "removed", "locality")),
    "TransferResult": (BASE, ("job_id", "success", "transfer_size", "transfer_time")),
    "JobResult": (
        TIERING,
        ("job_id", "success", "successful_keys", "transfer_time", "transfer_bytes"),
    ),
}


@dataclass(frozen=True)
class Method:
    """A method of a base class: its parameters behind ``self`` and what marks it."""

    name: str
    parameters: tuple[str, ...]
    marks: frozenset[str]
    returns: str


@cache
def _classes(path: str) -> dict[str, ast.ClassDef]:
    """The classes of a file of that version's sources."""
    tree = ast.parse((source(VERSION) / path).read_text())
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _methods(name: str) -> list[Method]:
    """The public methods of a base class and its constructor."""
    found = []
    for node in _classes(OURS[name][0])[name].body:
        if not isinstance(node, ast.FunctionDef):
            continue
        if node.name.startswith("_") and node.name != "__init__":
            continue
        arguments = [a.arg for a in [*node.args.args, *node.args.kwonlyargs]][1:]
        marks = frozenset(ast.unparse(mark) for mark in node.decorator_list)
        returns = ast.unparse(node.returns) if node.returns else ""
        found.append(Method(node.name, tuple(arguments), marks, returns))
    return found


@pytest.mark.parametrize("name", OURS)
def test_our_class_takes_every_call_of_the_next_version(name: str) -> None:
    """Abstract methods are there, parameters are taken by place and by name, kinds agree."""
    ours = OURS[name][1]
    methods = _methods(name)
    assert any("abstractmethod" in method.marks for method in methods)
    for method in methods:
        told = f"{name}.{method.name} of {VERSION}"
        defined = next((vars(c)[method.name] for c in ours.__mro__ if method.name in vars(c)), None)
        must = "abstractmethod" in method.marks or method.name in NEW.get(name, ())
        assert defined is not None or not must, f"{told} is not defined"
        if defined is None:
            continue
        if "property" in method.marks:
            assert isinstance(defined, property), f"{told} is a property"
            continue
        bound = getattr(ours, method.name)
        signature = inspect.signature(_plain(bound))
        skipped = 0 if "classmethod" in method.marks else 1
        values = dict.fromkeys(method.parameters)
        try:
            signature.bind(*[None] * (skipped + len(values)))
            signature.bind(*[None] * skipped, **values)
        except TypeError as error:
            if method.name == "__init__" and name == "SecondaryTierManager":
                signature.bind(*[None] * skipped, **values)  # built by keywords alone
            else:
                raise AssertionError(f"{told}{method.parameters}: {error}") from None
        if method.returns.startswith(("Sequence", "list", "Iterable")):
            assert "dict" not in str(signature.return_annotation).split("[")[0], (
                f"{told} returns {method.returns}, ours {signature.return_annotation}"
            )


def _plain(method: Callable[..., object]) -> Callable[..., object]:
    """A method as a function."""
    return method


@pytest.mark.parametrize("name", MADE)
def test_the_values_that_we_make_can_be_made_there(name: str) -> None:
    """The fields that we name exist, and any other has a default."""
    path, ours = MADE[name]
    fields = {}
    for node in _classes(path)[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            fields[node.target.id] = node.value is not None
    assert set(ours) <= set(fields), (name, fields)
    needed = {field for field, has_default in fields.items() if not has_default}
    assert needed <= set(ours), (name, needed)
