"""Two namespaces have one encoding only where every field is equal, and no field can pass for
another, because each is tagged and length prefixed: the encoding can be read back (C27, C28, C30).
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix.cache import PrefixCache
from radix.groups import Group, Retention
from radix.keys import Namespace, root_key
from radix.layout import Layout, Part
from radix.namespaces import Namespaces
from radix.store import FlatStore
from radix.tree import TreeCore
from tiers.index import IndexTier

TEXTS = ("model", "revision", "adapter", "adapter_version")
BLOBS = ("layout", "salt", "content")
# Values that spell what stands between two values in the encoding.
texts = st.text(alphabet="ab\0MARV\u00e9\u6f22", max_size=6)
texts |= st.sampled_from(["V\0\0\0\1a", "R\0\0\0\0", "\0\0\0\2ab", "radix-ns-1M"])
blobs = st.binary(max_size=6) | st.sampled_from([b"M\0\0\0\1a", b"C\0\0\0\0", b"R\0\0\0\1b", b"\0"])
spaces = st.builds(
    Namespace,
    **dict.fromkeys(TEXTS, texts),
    **dict.fromkeys(BLOBS, blobs),
)


@given(spaces)
def test_an_encoding_is_read_back_as_the_namespace_that_it_is_of(space: Namespace) -> None:
    """What can be read back cannot be the encoding of two."""
    assert Namespace.parse(space.canonical()) == space


@given(spaces, spaces)
def test_no_two_namespaces_encode_alike(one: Namespace, other: Namespace) -> None:
    """C27 (sglang#24638), C28 (vllm#45549): fields were joined, so one could pass for another."""
    assert (one.canonical() == other.canonical()) == (one == other)


def test_all_small_namespaces_have_encodings_of_their_own() -> None:
    """Each of seven fields empty, a, b or ab: every combination, no two alike."""
    seen: set[bytes] = set()
    for row in itertools.product(["", "a", "ab"], repeat=7):
        *words, layout, salt, content = row
        seen.add(
            Namespace(
                **dict(zip(TEXTS, words, strict=True)),
                layout=layout.encode(),
                salt=salt.encode(),
                content=content.encode(),
            ).canonical()
        )
    assert len(seen) == 3**7


def test_moving_a_value_or_its_end_to_another_field_changes_the_key() -> None:
    """C27: a caller's own key that equals an adapter's id hits nothing; the end of a model's name
    is not the beginning of its revision.
    """
    names = [*TEXTS, *BLOBS]
    moved = [Namespace(**{name: "h" if name in TEXTS else b"h"}) for name in names]
    cut = [
        Namespace("a", revision="b"),
        Namespace("ab"),
        Namespace("", revision="ab"),
        Namespace(adapter="a", adapter_version="b"),
        Namespace(adapter="ab"),
        Namespace("a", adapter_version="b"),
    ]
    keys = {root_key(space.canonical()) for space in [*moved, *cut, Namespace()]}
    assert len(keys) == len(moved) + len(cut) + 1


def test_fields_that_came_later_change_no_older_encoding() -> None:
    """What was stored before they were there is found again."""
    old = Namespace("m", "a", b"l", b"s", b"c")
    fields = [(b"M", b"m"), (b"A", b"a"), (b"L", b"l"), (b"S", b"s"), (b"C", b"c")]
    by_hand = b"radix-ns-1" + b"".join(
        tag + len(raw).to_bytes(4, "big") + raw for tag, raw in fields
    )
    assert old.canonical() == by_hand
    later = Namespace("m", "a", b"l", b"s", b"c", revision="r").canonical()
    assert later.startswith(by_hand) and len(later) > len(by_hand)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"radix-ns-1",
        b"radix-ns-2" + Namespace("m").canonical()[10:],
        Namespace("m").canonical()[:-1],
        Namespace("m").canonical() + b"\0",
        Namespace("m").canonical() + b"R\0\0\0\0",
        Namespace("m").canonical() + b"V\0\0\0\1vR\0\0\0\1r",
        Namespace("m").canonical().replace(b"A\0", b"B\0"),
        Namespace("m").canonical().replace(b"\1m", b"\1\xff"),
        Namespace("m").canonical().replace(b"M\0\0\0\1", b"M\xff\xff\xff\xff"),
    ],
)
def test_bytes_that_encode_no_namespace_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"canonical|utf-8"):
        Namespace.parse(raw)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("salt", 3),
        ("model", b"m"),
        ("revision", 7),
        ("adapter", None),
        ("adapter_version", 2),
        ("layout", "text"),
        ("content", None),
    ],
)
def test_namespace_of_a_wrong_type_is_refused_by_name(field: str, value: object) -> None:
    """A number became so many zero bytes, so that tenants 3 and b'\\0\\0\\0' shared state."""
    with pytest.raises(TypeError, match=f"{field} must be"):
        Namespace(**{field: value})


def test_text_that_no_utf8_can_write_is_refused_by_name() -> None:
    for field in TEXTS:
        with pytest.raises(ValueError, match=f"{field} must be text that UTF-8 can write"):
            Namespace(**{field: "a\ud800"})


# ---------------------------------------------------------------- what a cache adds by itself
def _spaces(*groups: Group, page_tokens: int = 4, scheme: int = 0) -> Namespaces:
    tree = TreeCore(page_tokens * 4, groups=len(groups), tiers=1)
    return Namespaces(tree, groups, page_tokens, scheme=scheme)


def _part(dtype: str, heads: int = 2) -> Layout:
    return Layout((Part("k", dtype, (("head", heads), ("dim", 8))),))


KV = Group("kv", _part("float16"))
CACHES = {
    "as it is": _spaces(KV),
    "another page": _spaces(KV, page_tokens=8),
    "another kind of page": _spaces(KV, scheme=1),
    "a third kind of page": _spaces(KV, scheme=2),
    "another dtype of the same bytes": _spaces(Group("kv", _part("bfloat16"))),
    "another layout": _spaces(Group("kv", _part("float16", 4))),
    "another name": _spaces(Group("vk", _part("float16"))),
    "two groups": _spaces(KV, Group("ab", _part("float16"))),
    "their order": _spaces(Group("ab", _part("float16")), KV),
    "blocks of two pages": _spaces(Group("kv", _part("float16"), grid_tokens=8)),
    "a window": _spaces(Group("kv", _part("float16"), Retention("window", 4))),
    "a wider window": _spaces(Group("kv", _part("float16"), Retention("window", 8))),
    "chunks": _spaces(Group("kv", _part("float16"), Retention("chunked", 4))),
    "a state": _spaces(Group("kv", _part("float16"), Retention("state"))),
    "looking ahead": _spaces(Group("kv", _part("float16"), lookahead=1)),
    "looking further ahead": _spaces(Group("kv", _part("float16"), lookahead=2)),
}


def test_caches_whose_blocks_mean_other_bytes_share_no_namespace() -> None:
    """C30 (cluster#4213): keys had no revision, dtype or layout in them."""
    names = {
        what: spaces.canonical(Namespace("m", revision="r")) for what, spaces in CACHES.items()
    }
    assert len(set(names.values())) == len(CACHES)
    for one, other in itertools.product(CACHES, repeat=2):
        assert CACHES[one].owns(names[other]) == (one == other), (one, other)
    assert CACHES["as it is"].owns(CACHES["as it is"].canonical(None))
    mine = Namespace(layout=b"engine\0", salt=b"s")
    assert CACHES["as it is"].owns(CACHES["as it is"].canonical(mine))
    assert not CACHES["as it is"].owns(b"no namespace")
    assert not CACHES["as it is"].owns(mine.canonical())


def test_what_a_caller_knows_of_the_layout_is_not_what_the_cache_adds() -> None:
    """A layout of the caller's that spells the cache's own gives another namespace."""
    spaces = CACHES["as it is"]
    own = Namespace.parse(spaces.canonical(None)).layout
    for layout in (own, own[4:], b"\0\0\0\0", b""):
        name = spaces.canonical(Namespace(layout=layout))
        assert (name == spaces.canonical(None)) == (layout == b"")


def test_what_the_rule_and_the_grid_do_not_touch_encodes_as_ever() -> None:
    """A group of plain blocks, one a page, has the layout's own fingerprint in the encoding, and
    so has every group of a flat store, whose keys are the caller's.
    """
    layout = (0).to_bytes(4, "big") + b"\0\2kv" + KV.layout.fingerprint + (4).to_bytes(4, "big")
    assert _spaces(KV).canonical(None) == Namespace(layout=layout).canonical()
    assert (
        _spaces(Group("kv", KV.layout, grid_tokens=4)).canonical(None)
        == Namespace(layout=layout).canonical()
    )
    names = []
    for group in (KV, Group("kv", KV.layout, Retention("window", 9), grid_tokens=32)):
        store = FlatStore([group], [IndexTier(4)], key_bytes=16)
        store.has(np.zeros((1, 16), np.uint8))
        names += store._spaces.names.values()
        store.close()
    assert names[0] == names[1]
    assert KV.layout.fingerprint in names[0]


def test_requests_of_two_namespaces_never_share_state() -> None:
    """C27, C28: whatever differs, the same tokens hit nothing."""
    cache = PrefixCache([Group.full("kv", 64)], [IndexTier(256)], page_tokens=4, clock=lambda: 0)
    tokens = np.arange(9, dtype=np.int32)
    kinds = [
        None,
        Namespace("m"),
        Namespace("m", revision="1"),
        Namespace("m1"),
        Namespace("m", "h"),
        Namespace("m", "h", adapter_version="1"),
        Namespace("m", "h", adapter_version="2"),
        Namespace("m", content=b"h"),
        Namespace("m", salt=b"h"),
        Namespace("m", layout=b"h"),
    ]
    for space in kinds:
        assert cache.match(tokens, namespace=space)[0].hit_pages == 0, space
        request = cache.admit(tokens, namespace=space)
        assert request.hit_tokens == 0
        request.computed(9)
        request.finish()
        cache.poll()
        assert cache.match(tokens, namespace=space)[0].hit_pages == 2
    cache.check()
    cache.close()
