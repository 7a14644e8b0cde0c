"""Asks a user's own policy for the keys of nodes, before anything is chosen by them (I17). What it
answers is judged here: nothing of it reaches the tree unless all of it is sound, and a policy that
fails is asked no more.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from radix._native import ffi, lib
from radix.gate import Gate
from radix.metrics import Metrics
from radix.policy.eviction import EvictionPolicy, Nodes
from radix.tree import TreeCore
from radix.treeparts import raise_status

# As rdx_told stands in memory.
_TOLD = np.dtype(
    [
        *[("came", "u8"), ("last", "u8"), ("before", "u8"), ("key", "f8")],
        *[("node", "u4"), ("uses", "u4"), ("again", "u4"), ("blocks", "u4")],
        *[("depth", "u4"), ("kind", "u4"), ("tenant", "u4"), ("zero", "u4")],
    ]
)
_COLUMNS = tuple(name for name in _TOLD.names or () if name not in ("kind", "zero"))


def ask_policy(tree: TreeCore, policy: str | EvictionPolicy, metrics: Metrics, gate: Gate) -> None:
    """Has a tree of the order ``given`` ask ``policy``, where that is an object, while ``gate`` is
    shut.
    """
    if not isinstance(policy, str):
        tree.before_choice = _Questions(tree, policy, metrics, gate).ask


class _AnswerError(Exception):
    """An answer that gives no keys."""


class _Questions:
    """What a policy is asked, and what becomes of its answers."""

    def __init__(
        self, tree: TreeCore, policy: EvictionPolicy, metrics: Metrics, gate: Gate
    ) -> None:
        self._native, self._policy, self._metrics, self._gate = tree.native, policy, metrics, gate
        self._count, self._now = ffi.new("uint32_t *"), ffi.new("uint64_t *")

    def ask(self, column: int) -> None:
        """Gives every node of a column its key. Cost: the nodes that came, were used or went."""
        waiting = lib.rdx_policy_waiting(self._native, column)
        if not waiting:
            return
        told = np.empty(waiting, _TOLD)
        raise_status(
            lib.rdx_policy_ask(
                self._native,
                column,
                ffi.from_buffer("rdx_told[]", told),
                waiting,
                self._count,
                self._now,
            )
        )
        told = told[: self._count[0]]
        nodes = np.ascontiguousarray(told["node"][told["kind"] != lib.RDX_TOLD_WENT])
        try:
            with self._gate.shut():
                keys = self._answers(column, told)
        except Exception as error:  # outermost: the user's own code; the warning tells of it
            self._fail(error)
            return
        raise_status(
            lib.rdx_policy_answer(
                self._native,
                column,
                ffi.from_buffer("uint32_t[]", nodes),
                ffi.from_buffer("double[]", keys),
                len(nodes),
            )
        )

    def _answers(self, column: int, told: npt.NDArray[np.void]) -> npt.NDArray[np.float64]:
        keys = [np.empty(0)]
        for kind, method in (
            (lib.RDX_TOLD_WENT, self._policy.went),
            (lib.RDX_TOLD_CAME, self._policy.came),
            (lib.RDX_TOLD_USED, self._policy.used),
        ):
            rows = told[told["kind"] == kind]
            if len(rows) and kind == lib.RDX_TOLD_WENT:
                method(_nodes(column, self._now[0], rows))
            elif len(rows):
                keys.append(_keys_of(method, _nodes(column, self._now[0], rows)))
        return np.concatenate(keys)

    def _fail(self, error: Exception) -> None:
        lib.rdx_policy_yield(self._native)
        self._metrics.add(("policy", "failed"))
        warnings.warn(
            f"eviction policy {type(self._policy).__name__} is asked no more, and what was used "
            f"longest ago goes first from now on: {type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=3,
        )


def _nodes(column: int, now: int, told: npt.NDArray[np.void]) -> Nodes:
    columns = {name: np.ascontiguousarray(told[name]) for name in _COLUMNS}
    for each in columns.values():
        each.flags.writeable = False
    return Nodes(order=column, now=now, **columns)


def _keys_of(
    method: Callable[[Nodes], npt.NDArray[np.float64] | None], nodes: Nodes
) -> npt.NDArray[np.float64]:
    answer = np.asarray(method(nodes))
    name = getattr(method, "__name__", "a method")
    if answer.shape != (len(nodes),) or answer.dtype.kind not in "iuf":
        raise _AnswerError(
            f"{name} must answer {len(nodes)} numbers, not {answer.dtype} of shape {answer.shape}"
        )
    keys = answer.astype(np.float64)
    if np.isnan(keys).any():
        raise _AnswerError(f"{name} answered a key that is no number (NaN)")
    return keys
