"""Checksums and page keys are XXH3 of the public specification, on every code path.

Oracle: the package xxhash. The golden chain is checked in, so that keys written to a disk by one
version are found by the next, whatever package is installed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import xxhash

from radix._native import ffi, lib

PARENT = bytes(range(16))
LARGE_BYTES = (4095, 4096, 65_537, 524_288, 1_048_577)

# Keys of 8 pages of 16 int32 tokens (token i = i * i), chained from PARENT, and of 8 opaque pages
# of 32 bytes (byte i = 7 * i + 3). In hexadecimal, canonical order.
GOLDEN_TOKEN_CHAIN = [
    "594471185459cc931dd73463ba2c07d3",
    "d71dd6254f8a49d24a53bfc8db68bd42",
    "b926e7039247061d2b986b25846e3250",
    "c07b2ed085c8ae3ebc6f0258796632b7",
    "da16aec62ee271431fd483b486aa6438",
    "0c1a356a9d1b7e05fee49a4cad19efb9",
    "4380c59665c24942306d84dff5928605",
    "eb7f1e96f35e069b88faaedbf7dacd6a",
]
GOLDEN_OPAQUE_CHAIN = [
    "b7bb91b47f05c3f12f6718c13945b786",
    "fccc333e8b253496205642abc6f09179",
    "cbe76f2be520f4246b67286b92e4e6a2",
    "787e69433aad937a7d465ad4baf3c4c0",
    "c5b8a3687755334e10a53d7290210b03",
    "e56d9855826a6378b3195cff449d7839",
    "82cb282884083e4dfd5dd8946f69870e",
    "2dbae07d53366b98defacf4be19d65ab",
]


def code_paths() -> list[int]:
    """Return the paths that this processor has; the one in force stays in force."""
    before = lib.rdx_dispatch_get()
    present = [path for path in range(3) if lib.rdx_dispatch_set(path) == lib.RDX_OK]
    lib.rdx_dispatch_set(before)
    return present


@pytest.fixture(params=code_paths())
def path(request: pytest.FixtureRequest) -> Iterator[int]:
    """Put one code path in force for the time of a test."""
    before = lib.rdx_dispatch_get()
    assert lib.rdx_dispatch_set(request.param) == lib.RDX_OK
    yield request.param
    lib.rdx_dispatch_set(before)


def xxh3_128(data: bytes) -> bytes:
    out = ffi.new("uint8_t[16]")
    lib.rdx_xxh3_128(ffi.from_buffer(data), len(data), out)
    return bytes(out)


def chain(parent: bytes, pages: bytes, page_bytes: int) -> list[bytes]:
    count = len(pages) // page_bytes
    out = ffi.new("uint8_t[]", max(1, count * 16))
    lib.rdx_keys_chain(ffi.from_buffer(parent), ffi.from_buffer(pages), count, page_bytes, out)
    return [bytes(out[16 * i : 16 * (i + 1)]) for i in range(count)]


def naive_chain(parent: bytes, pages: bytes, page_bytes: int) -> list[bytes]:
    keys: list[bytes] = []
    for at in range(0, len(pages), page_bytes):
        parent = xxhash.xxh3_128_digest(parent + pages[at : at + page_bytes])
        keys.append(parent)
    return keys


@pytest.mark.parametrize("content", ["random", "zero"])
def test_hashes_of_every_length_equal_the_package(path: int, content: str) -> None:
    data = random.Random(1).randbytes(max(LARGE_BYTES))
    if content == "zero":
        data = bytes(len(data))
    for nbytes in (*range(2049), *LARGE_BYTES):
        part = data[:nbytes]
        assert lib.rdx_xxh3_64(ffi.from_buffer(part), nbytes) == xxhash.xxh3_64_intdigest(part)
        assert xxh3_128(part) == xxhash.xxh3_128_digest(part), nbytes


@pytest.mark.parametrize(
    "page_bytes", [1, 4, 8, 16, 32, 63, 64, 65, 113, 128, 224, 225, 256, 1024, 4096]
)
def test_chained_keys_equal_one_hash_a_page(path: int, page_bytes: int) -> None:
    pages = random.Random(page_bytes).randbytes(33 * page_bytes)
    assert chain(PARENT, pages, page_bytes) == naive_chain(PARENT, pages, page_bytes)


def test_chain_continues_from_its_last_key(path: int) -> None:
    pages = random.Random(3).randbytes(40 * 64)
    whole = chain(PARENT, pages, 64)
    for cut in (1, 7, 39):
        rest = chain(whole[cut - 1], pages[cut * 64 :], 64)
        assert whole[:cut] + rest == whole


def test_a_change_in_any_page_changes_all_later_keys(path: int) -> None:
    pages = bytearray(random.Random(4).randbytes(12 * 64))
    before = chain(PARENT, bytes(pages), 64)
    pages[5 * 64 + 63] ^= 1
    after = chain(PARENT, bytes(pages), 64)
    assert after[:5] == before[:5]
    assert not set(after[5:]) & set(before)


def test_chained_keys_equal_the_golden_vectors(path: int) -> None:
    tokens = b"".join((i * i).to_bytes(4, "little") for i in range(8 * 16))
    assert [key.hex() for key in chain(PARENT, tokens, 64)] == GOLDEN_TOKEN_CHAIN
    opaque = bytes((7 * i + 3) % 256 for i in range(8 * 32))
    assert [key.hex() for key in chain(PARENT, opaque, 32)] == GOLDEN_OPAQUE_CHAIN


def test_no_pages_give_no_keys(path: int) -> None:
    assert chain(PARENT, b"", 64) == []


def test_a_path_that_the_processor_lacks_is_refused() -> None:
    before = lib.rdx_dispatch_get()
    for path in (-1, 3, *({0, 1, 2} - set(code_paths()))):
        assert lib.rdx_dispatch_set(path) == lib.RDX_EARG
    assert lib.rdx_dispatch_get() == before
