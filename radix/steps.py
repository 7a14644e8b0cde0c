"""What one step of a scheduler asks of a tree for many requests: each question is one crossing,
buffers in, arrays out. A call is the loop of the single calls in the given order, but all or
nothing: where one request is refused the error names it and nothing has changed (I11).

    step      match_many -> lease_many        requests that begin
              insert_many                     what was computed
              release_many                    requests that end
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from radix._native import (
    Match,
    lease_release_many,
    lease_take_many,
    lib,
    tree_insert_many,
    tree_match_many,
)
from radix.errors import StaleError
from radix.keys import as_tokens
from radix.plan import Cursor
from radix.tier import Slots

Counts = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.void]

EVERY_GROUP: int = lib.RDX_EVERY_GROUP
_tuple = tuple.__new__  # a NamedTuple's own constructor takes twice as long
_UNREADABLE = (TypeError, ValueError, OverflowError, BufferError)


def _layout(names: str, offsets: Sequence[int], size: int) -> np.dtype[np.void]:
    """A row of rdx.h: fields below byte 16 are 64 bits wide, the others 32."""
    formats = ["u8" if offset < 16 else "u4" for offset in offsets]
    return np.dtype(
        {"names": names.split(), "formats": formats, "offsets": list(offsets), "itemsize": size}
    )


CURSORS = _layout("root node pages", (8, 0, 16), 24)  # rdx_cursor, in the order of Cursor
MATCHES = _layout(  # rdx_match, in the order of Match; it begins with a cursor
    "device_pages hit_pages structural_pages limit_pages stop node root",
    (24, 28, 16, 32, 36, 0, 8),
    40,
)
INSERTS = _layout(  # rdx_insert, in the order of Insert; it begins with a cursor
    "node pages existing created attached duplicates root", (0, 16, 24, 28, 32, 36, 8), 40
)


def of_request(error: Exception, index: int) -> Exception:
    """The same error, whose text says which request of a batch it is about."""
    error.args = (f"request {index} of the batch: {error}",)
    return error


class Matches(Sequence[Match]):
    """What ``match`` says for each of many prompts. As a sequence: a ``Match`` each. As arrays:
    ``rows`` (n,), with the fields of a ``Match`` and ``root``, and ``cursors``.
    """

    __slots__ = ("rows",)

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    @property
    def hit_pages(self) -> Counts:
        """Pages of each joint hit, (n,) uint32: a view."""
        hit: Counts = self.rows["hit_pages"]
        return hit

    @property
    def cursors(self) -> Rows:
        """Where each walk ended, (n,) of ``CURSORS``: what ``lease_many`` takes. A copy."""
        return _cursors_of(self.rows)

    def cursor(self, index: int) -> Cursor:
        """Where one walk ended."""
        row = self.rows[index]
        return Cursor(int(row["root"]), int(row["node"]), int(row["structural_pages"]))

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Match: ...
    @overload
    def __getitem__(self, index: slice) -> Matches: ...
    def __getitem__(self, index: int | slice) -> Match | Matches:
        if isinstance(index, slice):
            return Matches(self.rows[index])
        return Match(*self.rows[index].item()[:6])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as every sequence that compares by value

    def __repr__(self) -> str:
        return f"Matches({list(self)})"


CursorRows: TypeAlias = "Matches | Rows | Sequence[Cursor]"


def _cursors_of(rows: Rows) -> Rows:
    size = CURSORS.itemsize
    flat = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), rows.dtype.itemsize)
    return np.ascontiguousarray(flat[:, :size]).view(CURSORS).reshape(len(rows))


def _given(cursors: CursorRows) -> object:
    """Cursors as a crossing takes them: their bytes, or tuples."""
    if isinstance(cursors, Matches):
        return cursors.cursors
    if not isinstance(cursors, np.ndarray):
        return cursors
    if cursors.dtype not in (CURSORS, MATCHES, INSERTS):
        raise TypeError(f"cursors must be rows of CURSORS, not {cursors.dtype}")
    return _cursors_of(cursors)


class Steps:
    """The calls of a tree for many requests; of one: ``TreeCore``."""

    capsule: object
    check_ids: bool
    page_bytes: int

    def match_many(
        self,
        roots: Sequence[int] | Numbers,
        prompts: Sequence[object],
        leave: int = 1,
        readable: int = 0xFFFFFFFF,
    ) -> Matches:
        """``match`` for each of many prompts, walked in turns so that their cache misses overlap.

        ``roots``: one a prompt. ``prompts``: int32 buffers, or the rows of an array; others are
        converted. ``StaleError`` where a root is gone. Cost: the tokens compared, one crossing.
        """
        if len(roots) != len(prompts):
            raise ValueError(f"roots must be one a prompt: {len(roots)} for {len(prompts)}")
        spaces = np.asarray(roots, np.uint64)
        rows = np.empty(len(prompts), MATCHES)
        try:
            tree_match_many(self.capsule, prompts, spaces, leave, readable, rows)
        except _UNREADABLE:
            # No int32 buffers as they stand: converted, or refused by name.
            runs = self._readable(prompts)
            tree_match_many(self.capsule, runs, spaces, leave, readable, rows)
        except StaleError as error:
            raise StaleError(f"roots: {error}") from None
        return Matches(rows)

    def _readable(self, prompts: Sequence[object]) -> Sequence[object]:
        if not self.check_ids:
            return prompts
        return [as_tokens(prompt, f"prompts[{at}]") for at, prompt in enumerate(prompts)]

    def lease_many(self, cursors: CursorRows, mask: int = EVERY_GROUP) -> tuple[Numbers, Rows]:
        """``lease`` for each of many cursors: the leases (n,) and where what each pins ends, (n,)
        of ``CURSORS``.

        ``cursors``: what ``match_many`` gave, rows, or ``Cursor`` each. Pins all or none:
        ``StaleError`` where a root is gone. Cost: nodes newly pinned, one crossing.
        """
        leases, ends = np.empty(len(cursors), np.uint64), np.empty(len(cursors), CURSORS)
        lease_take_many(self.capsule, _given(cursors), mask, leases, ends)
        return leases, ends

    def release_many(self, leases: Numbers | Sequence[int], *, stamp: bool = True) -> None:
        """Gives leases back, the last of them as the most recently used; all or none:
        ``LeaseError`` where one is not held, or stands twice. Cost: one crossing.
        """
        lease_release_many(self.capsule, np.ascontiguousarray(leases, np.uint64), int(stamp))

    def insert_many(
        self,
        cursors: CursorRows,
        prompts: Sequence[object],
        columns: npt.NDArray[np.uint32],
        slots: Slots,
        canonical: Slots | None = None,
        leases: Numbers | Sequence[int] | None = None,
        *,
        touch: bool = False,
    ) -> Rows:
        """``insert`` for each of many prompts, of which what lies behind its cursor goes in.

        ``prompts``: int32 buffers of whole prompts. ``slots``, ``canonical``: int32, flat: of each
        prompt in turn its (columns, new pages), -1 for none. ``leases``: one a prompt, 0 for none,
        each once. ``touch``: what a cursor ends was used until now. What went in, (n,) of
        ``INSERTS``; all or nothing, out of memory too: ``StaleError``, ``LeaseError`` and
        ``ValueError`` name the first request that is refused. Cost: the new pages, one crossing.
        """
        if len(cursors) != len(prompts) or (leases is not None and len(leases) != len(prompts)):
            raise ValueError(f"cursors and leases must be one a prompt: {len(prompts)} prompts")
        done = np.empty(len(prompts), INSERTS)
        held = None if leases is None else np.ascontiguousarray(leases, np.uint64)
        given: tuple[Any, ...] = (columns, slots, canonical, held, int(touch), done)
        tree_insert_many(self.capsule, prompts, _given(cursors), *given)
        return done
