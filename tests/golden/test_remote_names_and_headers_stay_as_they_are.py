"""Names and headers of values are a format between machines and versions: vectors of both, checked
in, so that what one release stored another finds, or plainly does not (C26).
"""

from __future__ import annotations

import numpy as np

from radix.groups import Group
from radix.layout import Layout, Part
from radix.tier import Records
from tiers.remote_values import HEADER_BYTES, Names, Values, is_epoch, sealed_epoch, space_of

PART = Part("k", "uint8", (("layer", 2), ("head", 2), ("byte", 4)), "head", 2)
GROUPS = (Group.full("other", 8), Group("kv", Layout((PART,), 2)))
EPOCH = bytes(range(16))
KEY = bytes(range(100, 116))
RECORDS = Records(
    namespace=b"space",
    keys=np.frombuffer(KEY, np.uint8).reshape(1, 16),
    parents=np.zeros((1, 16), np.uint8),
    pages=np.arange(8, dtype=np.uint8).reshape(1, 8),
    positions=np.zeros(1, np.int64),
)

NAMES = [
    "p:{c198f717f4320d7032c13ed25315078f}:1",
    "p:{6db3b9a86252b3abcfce7aef09a396752f16257197aaff7ab198b5a1b43fe13e}:1",
]
HEADER = (
    "52445852454d4f540100a0000100010010000000773d11433f2edb570e495318"
    "e86878f228a74ed3ef4f751d7d31a467439670e26af96d2518fa3c40a7f828e5"
    "5e9e1f61000102030405060708090a0b0c0d0e0f6465666768696a6b6c6d6e6f"
    "70717273000000000000000000000000000000000800000000000000e1e4432a"
    "62217fe4cfd50c61c8bb98c100000000000000000000000029e74259af1b1974"
)


def test_names_are_these() -> None:
    names = [
        names.name(names.blocks(1, RECORDS, EPOCH).digests[0].tobytes(), 1)
        for names in (Names("p", "xxh3", GROUPS), Names("p", "sha256", GROUPS))
    ]
    assert names == NAMES
    assert Names("p", "xxh3", GROUPS).epoch_name == "p:epoch"


def test_everything_that_tells_blocks_apart_is_in_a_name() -> None:
    names = Names("p", "xxh3", GROUPS)
    base = names.blocks(1, RECORDS, EPOCH).digests.tobytes()
    others = [
        names.blocks(0, RECORDS, EPOCH),
        names.blocks(1, RECORDS, bytes(16)),
        names.blocks(1, _but(namespace=b"spacf"), EPOCH),
        names.blocks(1, _but(keys=RECORDS.keys + np.uint8(1)), EPOCH),
        names.blocks(1, _but(pages=RECORDS.pages + np.uint8(1)), EPOCH),
        Names("p", "xxh3", (GROUPS[0], Group.full("kv", 16))).blocks(1, RECORDS, EPOCH),
    ]
    digests = {base, *(other.digests.tobytes() for other in others)}
    assert len(digests) == 1 + len(others)


def _but(**fields: object) -> Records:
    known = {name: getattr(RECORDS, name) for name in Records.__slots__}
    return Records(**(known | fields))


def test_headers_are_these() -> None:
    values = Values(1, GROUPS[1])
    value = memoryview(bytearray(HEADER_BYTES) + bytes(range(8)))
    values.seal(value, space_of(b"space"), EPOCH, KEY, 1)
    assert value[:HEADER_BYTES].hex() == HEADER
    assert values.verify(value, space_of(b"space"), EPOCH, KEY, 1)
    for wrong in (
        (space_of(b"spacf"), EPOCH, KEY, 1),
        (space_of(b"space"), bytes(16), KEY, 1),
        (space_of(b"space"), EPOCH, KEY[::-1], 1),
        (space_of(b"space"), EPOCH, KEY + b"\0", 1),
        (space_of(b"space"), EPOCH, KEY, 0),
    ):
        assert not values.verify(value, *wrong)
    assert not Values(0, GROUPS[1]).verify(value, space_of(b"space"), EPOCH, KEY, 1)


def test_every_bit_of_a_value_counts() -> None:
    values, space = Values(1, GROUPS[1]), space_of(b"space")
    value = memoryview(bytearray(HEADER_BYTES) + bytes(range(8)))
    values.seal(value, space, EPOCH, KEY, 1)
    for bit in range(8 * len(value)):
        value[bit // 8] ^= 1 << bit % 8
        assert not values.verify(value, space, EPOCH, KEY, 1), f"bit {bit}"
        value[bit // 8] ^= 1 << bit % 8
    assert values.verify(value, space, EPOCH, KEY, 1)


def test_an_epoch_is_whole_or_none() -> None:
    sealed = sealed_epoch(EPOCH)
    assert is_epoch(sealed)
    assert not is_epoch(sealed[:-1])
    assert not is_epoch(sealed + b"x")
    assert not any(
        is_epoch(sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :])
        for at in range(len(sealed))
    )
