"""Each status of rdx.h has a name, a text of its own and a class that Python raises for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from radix._native import ffi, lib
from radix.errors import STATUS_CLASSES, CacheError, TierError
from radix.tree import raise_status

HEADER = Path(__file__).resolve().parents[2] / "native" / "include" / "rdx.h"
STATUSES = range(lib.RDX_STATUS_COUNT)


def text(status: int) -> str:
    """The native text of a status."""
    return ffi.string(lib.rdx_status_text(status)).decode()


def name(status: int) -> str:
    """The native name of a status."""
    return ffi.string(lib.rdx_status_name(status)).decode()


def test_header_and_names_and_classes_list_the_same_statuses() -> None:
    declared = dict(re.findall(r"#define (RDX_OK|RDX_E[A-Z]+) (\d+)", HEADER.read_text()))
    assert {name(status): str(status) for status in STATUSES} == declared
    assert set(STATUS_CLASSES) == set(declared) - {"RDX_OK"}


def test_each_text_says_something_of_its_own() -> None:
    texts = [text(status) for status in STATUSES]
    assert len(set(texts)) == len(texts)
    assert all(len(said) > 1 and said != "unknown status" for said in texts)
    for outside in (-1, lib.RDX_STATUS_COUNT, 1 << 30):
        assert text(outside) == name(outside) == "unknown status"


@pytest.mark.parametrize("status", STATUSES)
def test_status_raises_its_class(status: int) -> None:
    if status == lib.RDX_OK:
        raise_status(status)
        return
    expected = STATUS_CLASSES[name(status)]
    assert issubclass(expected, CacheError | MemoryError | ValueError)
    if issubclass(expected, TierError):
        return  # a tier raises these, with its own name
    with pytest.raises(expected):
        raise_status(status)


def test_status_that_nobody_knows_is_an_error_too() -> None:
    with pytest.raises(CacheError, match="unknown status"):
        raise_status(lib.RDX_STATUS_COUNT)
