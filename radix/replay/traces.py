"""Read traces of real traffic: block traces, whole sessions, delta-coded token traces; plain, gz
or xz.

A reader turns a file (or standard input, named `-`) into one `Trace`: every prompt as a slice of
one flat int32 array, ready for `PrefixCache` without a further copy. Format and compression are
detected from the content, never from the name, so that a pipe and a file behave alike.

Kept here: a trace is accepted whole or not at all. Whatever is wrong with it is a `TraceError` that
names file, line and field; no request of a faulty trace is ever handed out.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import math
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from radix.errors import CacheError
from radix.keys import Namespace
from radix.replay.sessions import Interleave, Sessions, tenant_of

Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]
Record: TypeAlias = dict[str, Any]
Unit: TypeAlias = Literal["block", "token"]

ID_LIMIT = 1 << 31
LENGTH_LIMIT = 1 << 40
DEFAULT_PAGE_TOKENS = 16
_READ_BYTES = 1 << 18
_GZIP_MAGIC = b"\x1f\x8b"
_XZ_MAGIC = b"\xfd7zXZ\x00"
_UNREADABLE = {b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"PK\x03\x04": "zip"}


class TraceError(CacheError, ValueError):
    """A trace that cannot be replayed, with the place of the fault.

    `line` counts from 1 and is 0 where the fault is the whole file's; `field` is empty where no
    single field is at fault. `str()` is one line that names all that is known.
    """

    def __init__(self, file: str, line: int, field: str, what: str) -> None:
        place = f"{file}:{line}" if line else file
        super().__init__(f"{place}: {field}: {what}" if field else f"{place}: {what}")
        self.file = file
        self.line = line
        self.field = field
        self.what = what


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    `tokens` is the whole prompt, int32 and C-contiguous: token ids, or block ids where `unit` is
    "block". It is a view of the trace's own memory and must not be written to. `timestamp` is in
    the unit of the trace (milliseconds in most, seconds in some and where sessions are arranged).
    """

    timestamp: float
    unit: Unit
    tokens: Int32Array


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace in memory.

    Prompt i is `tokens[offsets[i]:offsets[i + 1]]`. A page is `page_tokens` entries of it: one
    block id in a block trace (a last, partial block counts as a block), `page_tokens` token ids in
    a token trace, where only full pages count. `lengths[i]` is its length in tokens, 0 where the
    trace does not tell. Output i is `outputs[output_offsets[i]:output_offsets[i + 1]]`; a block
    trace tells the ids of no output. `block_tokens` is what a block id stands for, 0 where the
    trace does not tell. `streams[i]` is the number of the conversation that request i belongs to,
    -1 where the trace does not tell; `sessions[i]` that of the session, of which an agent's
    conversations are parts. `tenants[i]` is whose it is, "" where that is not told; empty where it
    is told of none. `name` says how sessions were interleaved, where they were.
    """

    name: str
    unit: Unit
    page_tokens: int
    block_tokens: int
    timestamps: npt.NDArray[np.float64]
    tokens: Int32Array
    offsets: Int64Array
    lengths: Int64Array
    outputs: Int32Array
    output_offsets: Int64Array
    streams: Int64Array
    sessions: Int64Array
    tenants: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of requests. Cost: O(1)."""
        return len(self.timestamps)

    def prompts(self) -> Iterator[Int32Array]:
        """Yield each prompt in file order, as a view. Cost: O(1) a prompt, nothing is copied."""
        bounds = self.offsets.tolist()
        tokens = self.tokens
        for start, end in pairwise(bounds):
            yield tokens[start:end]

    def turns(self) -> Iterator[Int32Array]:
        """Yield what is computed when each request ends: its prompt and its output but for the last
        token, which was sampled and not computed. Cost: a view, or a copy where there is an output.
        """
        bounds = self.output_offsets.tolist()
        for prompt, (start, end) in zip(self.prompts(), pairwise(bounds), strict=True):
            computed = self.outputs[start : end - 1]
            yield np.concatenate((prompt, computed)) if len(computed) else prompt

    def spaces(self) -> Iterator[Namespace | None]:
        """Yield the namespace of each request: its tenant's, or None. Cost: O(1) a request."""
        known = {name: Namespace(salt=name.encode()) if name else None for name in self.tenants}
        for tenant in self.tenants:
            yield known[tenant]
        if not self.tenants:
            yield from repeat(None, len(self))

    def requests(self) -> Iterator[TraceRequest]:
        """Yield each request in file order. Cost: O(1) a request, nothing is copied."""
        for timestamp, tokens in zip(self.timestamps.tolist(), self.prompts(), strict=True):
            yield TraceRequest(timestamp=timestamp, unit=self.unit, tokens=tokens)


def read_trace(
    source: str, page_tokens: int = DEFAULT_PAGE_TOKENS, interleave: Interleave | None = None
) -> Trace:
    """Read a whole trace; nothing on disk is changed.

    Guarantees that every prompt is C-contiguous int32 with ids in [0, 2^31).
    Cost: one pass over the file; about 5 us a line of 24 block ids.

    Args:
        source: path of the trace, or "-" for standard input (compressed or not).
        page_tokens: tokens a page, for token traces; a block trace has one block id a page.
        interleave: how several sessions run at once, for a file of whole sessions, which are put
            one after another without it.

    Raises:
        TraceError: missing, damaged or unknown file; a line that is not JSON or lacks a field; an
            id that is not an integer of [0, 2^31); a reference to a record that has not come yet;
            no sessions in what is to be interleaved.
        ValueError: `page_tokens` is not positive.
    """
    if page_tokens < 1:
        raise ValueError(f"page_tokens must be at least 1, got {page_tokens}")
    name = "<stdin>" if source == "-" else source
    try:
        with _open(source, name) as stream:
            return _Reader(name, page_tokens, interleave).read(stream)
    except FileNotFoundError:
        raise TraceError(name, 0, "", "no such file") from None
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise TraceError(name, 0, "", f"damaged compressed data ({error})") from None
    except OSError as error:
        raise TraceError(name, 0, "", error.strerror or str(error)) from None


@contextmanager
def _open(source: str, name: str) -> Iterator[io.BufferedReader]:
    """Open `source` for reading lines, through the decompressor that its first bytes ask for."""
    with ExitStack() as stack:
        raw = cast(io.BufferedReader, sys.stdin.buffer)
        if source != "-":
            raw = stack.enter_context(Path(source).open("rb"))
        head = raw.read(6)
        opened: Any = raw
        if source != "-" and raw.seekable():
            raw.seek(0)
        else:
            opened = io.BytesIO(head + _read_all(raw))
        for magic, kind in _UNREADABLE.items():
            if head.startswith(magic):
                raise TraceError(name, 0, "", f"{kind} data; traces are read plain, gz or xz")
        # The decompressors have every method that BufferedReader calls, though the type stubs do
        # not derive them from RawIOBase.
        if head.startswith(_GZIP_MAGIC):
            opened = gzip.GzipFile(fileobj=opened)
        elif head.startswith(_XZ_MAGIC):
            opened = stack.enter_context(lzma.LZMAFile(opened))
        yield stack.enter_context(io.BufferedReader(opened, _READ_BYTES))


def _read_all(pipe: io.BufferedReader) -> bytes:
    """Read a pipe, which cannot be rewound, to its end.

    One system call at a time, because an interrupt that falls between two calls of a single long
    `read()` is held back until the pipe's other end says more.
    """
    pieces = []
    while piece := pipe.read1(_READ_BYTES):
        pieces.append(piece)
    return b"".join(pieces)


class _Reader:
    """The state of one reading: where it stands, for the errors, and what it has gathered."""

    def __init__(self, name: str, page_tokens: int, interleave: Interleave | None) -> None:
        self.name = name
        self.page_tokens = page_tokens
        self.interleave = interleave
        self.line = 0
        self.timestamps = array("d")
        self.offsets = array("q", [0])
        self.lengths = array("q")
        self.streams = array("q")
        self.sessions = array("q")
        self.tenants: list[str] = []
        self._names: dict[str, int] = {}
        self._conversations: dict[tuple[str, str], int] = {}

    def read(self, stream: Iterable[bytes]) -> Trace:
        records = self._records(stream)
        first = next(records, None)
        if first is None:
            self.line = 0
            self.fail("", "the trace is empty")
        if {"block_size", "requests"} <= first.keys():
            return self._read_sessions(first, records)
        if self.interleave is not None:
            self.fail("", "holds no whole sessions that could be interleaved")
        if "hash_ids" in first or {"timestamp", "input_length"} <= first.keys():
            return self._read_blocks(first, records)
        if first.keys() & {"ref", "keep", "add"}:
            return self._read_tokens(first, records)
        fields = ", ".join(sorted(map(str, first))[:8])
        self.fail("", f"unknown trace format (fields: {fields or 'none'})")

    def fail(self, field: str, what: str) -> NoReturn:
        raise TraceError(self.name, self.line, field, what)

    def _records(self, stream: Iterable[bytes]) -> Iterator[Record]:
        loads = json.loads
        for self.line, line in enumerate(stream, 1):
            try:
                record = loads(line)
            except RecursionError:
                self.fail("", "not a JSON record (nested too deep)")
            except ValueError as error:
                if line.isspace():
                    continue
                self.fail("", f"not JSON ({error})")
            if type(record) is not dict:
                self.fail("", f"not a JSON object but {_kind(record)}")
            yield record

    def _read_blocks(self, first: Record, rest: Iterator[Record]) -> Trace:
        ids = array("i")
        ends = self.offsets
        for record in chain((first,), rest):
            try:
                self._take_time(record["timestamp"], "timestamp")
                self._take_length(record.get("input_length", 0))
                self._take_stream(record)
                self.tenants.append(tenant_of(record, self.fail))
                self._extend(ids, record["hash_ids"], "hash_ids")
            except KeyError as error:
                self.fail(str(error.args[0]), "field is missing")
            ends.append(len(ids))
        tokens = np.frombuffer(ids, dtype=np.int32) if ids else np.empty(0, dtype=np.int32)
        return self._finish("block", 1, tokens, [])

    def _read_sessions(self, first: Record, rest: Iterator[Record]) -> Trace:
        sessions = Sessions(self.fail)
        for record in chain((first,), rest):
            sessions.add(record)
        times, ids, offsets, lengths, order = sessions.arrange(self.interleave)
        if not len(times):
            self.line = 0
            self.fail("", "no session has a request")
        ids.flags.writeable = False
        return Trace(
            name=self.name if self.interleave is None else f"{self.name} ({self.interleave})",
            unit="block",
            page_tokens=1,
            block_tokens=sessions.block_tokens,
            timestamps=times,
            tokens=ids,
            offsets=offsets,
            lengths=lengths,
            outputs=np.empty(0, dtype=np.int32),
            output_offsets=np.zeros(len(times) + 1, np.int64),
            streams=sessions.streams[order],
            sessions=sessions.sessions[order],
            tenants=_told([sessions.tenants[number] for number in sessions.sessions[order]]),
        )

    def _read_tokens(self, first: Record, rest: Iterator[Record]) -> Trace:
        prompts: list[Int32Array] = []
        outputs: list[Int32Array] = []
        for record in chain((first,), rest):
            try:
                self._take_time(record["t"], "t")
                self.tenants.append(tenant_of(record, self.fail))
                kept = self._kept(record["ref"], record["keep"], prompts, outputs)
                added = self._ids(record["add"], "add")
                outputs.append(self._ids(record["out"], "out"))
            except KeyError as error:
                self.fail(str(error.args[0]), "field is missing")
            prompts.append(np.concatenate((*kept, added)))
            if not len(prompts[-1]):
                self.fail("add", "the prompt is empty")
            self.offsets.append(self.offsets[-1] + len(prompts[-1]))
        self.lengths.extend(map(len, prompts))
        self.streams.extend([-1] * len(prompts))
        self.sessions.extend([-1] * len(prompts))
        return self._finish("token", self.page_tokens, np.concatenate(prompts), outputs)

    def _kept(
        self, ref: Any, keep: Any, prompts: list[Int32Array], outputs: list[Int32Array]
    ) -> tuple[Int32Array, ...]:
        """Return the first `keep` tokens of prompt and output of record `ref`, as views."""
        if type(ref) is not int:
            self.fail("ref", f"expected an integer, got {_kind(ref)}")
        if type(keep) is not int:
            self.fail("keep", f"expected an integer, got {_kind(keep)}")
        if not -1 <= ref < len(prompts):
            self.fail("ref", f"unknown record {ref}; {len(prompts)} came before this one")
        if keep < 0:
            self.fail("keep", f"must not be negative, got {keep}")
        length = len(prompts[ref]) + len(outputs[ref]) if ref >= 0 else 0
        if keep > length:
            self.fail("keep", f"{keep} tokens of record {ref}, which has {length}")
        if ref < 0:
            return ()
        prompt = prompts[ref]
        return prompt[:keep], outputs[ref][: max(0, keep - len(prompt))]

    def _take_time(self, value: Any, field: str) -> None:
        if type(value) not in (int, float):
            self.fail(field, f"expected a number, got {_kind(value)}")
        try:
            finite = math.isfinite(value)
        except OverflowError:
            finite = False
        if not finite:
            self.fail(field, "expected a finite number")
        self.timestamps.append(value)

    def _take_length(self, value: Any) -> None:
        if type(value) is not int:
            self.fail("input_length", f"expected an integer, got {_kind(value)}")
        if not 0 <= value < LENGTH_LIMIT:
            self.fail("input_length", f"{_short(value)} is outside [0, 2^40)")
        self.lengths.append(value)

    def _ids(self, values: Any, field: str) -> Int32Array:
        ids = array("i")
        self._extend(ids, values, field)
        return np.frombuffer(ids, dtype=np.int32) if ids else np.empty(0, dtype=np.int32)

    def _take_stream(self, record: Record) -> None:
        session, agent = record.get("session_id"), record.get("agent", "")
        if session is None:
            self.streams.append(-1)
            self.sessions.append(-1)
            return
        if type(session) is not str or type(agent) is not str:
            field = "agent" if type(session) is str else "session_id"
            self.fail(field, f"expected a string, got {_kind(record[field])}")
        known = self._conversations
        self.streams.append(known.setdefault((session, agent), len(known)))
        self.sessions.append(self._names.setdefault(session, len(self._names)))

    def _extend(self, ids: array[int], values: Any, field: str) -> None:
        """Append a list of ids; the array type checks the upper bound, all in C."""
        try:
            ids.fromlist(values)
        except (TypeError, OverflowError):
            self._blame(values, field)
        if values and (min(values) < 0 or _TRUTHS.intersection(map(type, values))):
            self._blame(values, field)

    def _blame(self, values: Any, field: str) -> NoReturn:
        """Name the first value of a list that is no id; it is known that there is one."""
        if type(values) is not list:
            self.fail(field, f"expected a list of integers, got {_kind(values)}")
        for index, value in enumerate(values):
            if type(value) is not int:
                self.fail(f"{field}[{index}]", f"expected an integer, got {_kind(value)}")
            if not 0 <= value < ID_LIMIT:
                self.fail(f"{field}[{index}]", f"{_short(value)} is outside [0, 2^31)")
        raise AssertionError("a list of valid ids was refused")

    def _finish(
        self, unit: Unit, page_tokens: int, tokens: Int32Array, outputs: list[Int32Array]
    ) -> Trace:
        tokens.flags.writeable = False
        ends = np.zeros(len(self.timestamps) + 1, np.int64)
        if outputs:
            np.cumsum([len(output) for output in outputs], out=ends[1:])
        return Trace(
            name=self.name,
            unit=unit,
            page_tokens=page_tokens,
            block_tokens=0,
            timestamps=np.frombuffer(self.timestamps, dtype=np.float64),
            tokens=tokens,
            offsets=np.frombuffer(self.offsets, dtype=np.int64),
            lengths=np.frombuffer(self.lengths, dtype=np.int64),
            outputs=np.concatenate(outputs) if outputs else np.empty(0, dtype=np.int32),
            output_offsets=ends,
            streams=np.frombuffer(self.streams, dtype=np.int64),
            sessions=np.frombuffer(self.sessions, dtype=np.int64),
            tenants=_told(self.tenants),
        )


# JSON's true and false are integers to Python and to array, but not ids.
_TRUTHS = frozenset({bool})


def _told(tenants: list[str]) -> tuple[str, ...]:
    """Whose each request is; nothing where it is told of none."""
    return tuple(tenants) if any(tenants) else ()


def _kind(value: object) -> str:
    """Name a JSON value in JSON's own words."""
    if value is None:
        return "null"
    names = {bool: "a truth value", int: "an integer", float: "a fraction", str: "a string"}
    return names.get(type(value), "a list" if type(value) is list else "an object")


def _short(value: int) -> str:
    """Print an id, however many digits it has."""
    return str(value) if abs(value) < 1 << 128 else f"about 2^{value.bit_length()}"
