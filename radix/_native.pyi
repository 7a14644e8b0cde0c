"""Types of the extension module: cffi's two objects, and the fast entries of native/fastcall.c."""

from collections.abc import Callable
from typing import Any, NamedTuple

ffi: Any
lib: Any

class Match(tuple[int, int, int, int, int, int]):
    """A struct sequence: it is made from one tuple of all fields."""

    def __new__(cls, fields: tuple[int, int, int, int, int, int], /) -> Match: ...
    @property
    def device_pages(self) -> int: ...
    @property
    def hit_pages(self) -> int: ...
    @property
    def structural_pages(self) -> int: ...
    @property
    def limit_pages(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def node(self) -> int: ...

class Insert(NamedTuple):
    node: int
    pages: int
    existing: int
    created: int
    attached: int
    duplicates: int

def tree_new(
    page_bytes: int,
    check_ids: int,
    groups: object,
    tiers: int,
    key_bytes: int,
    page_tokens: int,
    seed: int,
    /,
) -> object: ...
def tree_address(tree: object, /) -> int: ...
def tree_match(tree: object, root: int, tokens: object, leave: int, readable: int, /) -> Match: ...
def lease_take(
    tree: object, root: int, node: int, pages: int, mask: int, first: int, /
) -> tuple[int, int, int]: ...
def lease_release(tree: object, lease: int, stamp: int, /) -> None: ...
def tree_insert(
    tree: object,
    root: int,
    node: int,
    pages: int,
    tokens: object,
    columns: object,
    slots: object,
    canonical: object | None,
    lease: int,
    /,
) -> Insert: ...
def tree_evict(
    tree: object, column: int, count: int, upto: int, slots: object, ids: object | None, /
) -> int: ...
def set_raiser(raiser: Callable[[int], None], /) -> None: ...
