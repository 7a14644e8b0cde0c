"""Types of the extension module: cffi's two objects, and the fast entries of native/fastcall.c."""

from collections.abc import Callable
from typing import Any, NamedTuple

ffi: Any
lib: Any

class Match(NamedTuple):
    device_pages: int
    hit_pages: int
    structural_pages: int
    limit_pages: int
    stop: int
    node: int

class Insert(NamedTuple):
    node: int
    pages: int
    existing: int
    created: int
    attached: int
    duplicates: int

Cursor = tuple[int, int, int]  # root, node, pages

def tree_new(
    page_bytes: int,
    check_ids: int,
    tiers: int,
    key_bytes: int,
    page_tokens: int,
    seed: int,
    groups: object,
    /,
) -> object: ...
def tree_address(tree: object, /) -> int: ...
def tree_match(tree: object, root: int, tokens: object, leave: int, readable: int, /) -> Match: ...
def tree_match_many(
    tree: object, prompts: object, roots: object, leave: int, readable: int, found: object, /
) -> None: ...
def lease_take(tree: object, cursor: Cursor, mask: int, first: int, /) -> tuple[int, int, int]: ...
def lease_take_many(
    tree: object, cursors: object, mask: int, leases: object, ends: object, /
) -> None: ...
def lease_release(tree: object, lease: int, stamp: int, /) -> None: ...
def lease_release_many(tree: object, leases: object, stamp: int, /) -> None: ...
def tree_insert(
    tree: object,
    cursor: Cursor,
    tokens: object,
    columns: object,
    slots: object,
    canonical: object | None,
    lease: int,
    /,
) -> Insert: ...
def tree_insert_pooled(
    tree: object,
    cursor: object,
    prompt: object,
    pools: int,
    boundary: int,
    lease: int,
    canonical: object,
    /,
) -> Insert: ...
def tree_insert_many(
    tree: object,
    prompts: object,
    cursors: object,
    columns: object,
    slots: object,
    canonical: object | None,
    leases: object | None,
    touch: int,
    done: object,
    /,
) -> None: ...
def tree_evict(
    tree: object, column: int, count: int, upto: int, slots: object, ids: object | None, /
) -> int: ...
def tree_peek(tree: object, column: int, /) -> int: ...
def tree_touch(tree: object, cursor: Cursor, /) -> None: ...
def tree_slots(
    tree: object, cursor: Cursor, column: int, first: int, count: int, slots: object, /
) -> None: ...
def tree_column(tree: object, column: int, /) -> tuple[int, int, int]: ...
def pool_capacity(pool: int, /) -> int: ...
def pool_count(pool: int, state: int, /) -> int: ...
def pool_reserve(pool: int, count: int, slots: object, /) -> int: ...
def pool_move(pool: int, slots: object, source: int, target: int, /) -> int: ...
def set_raiser(raiser: Callable[[int, int], None], /) -> None: ...
def know_array(array: object, /) -> bool: ...
