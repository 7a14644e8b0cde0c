"""Each status code of the header has a text for people and the name of its macro."""

from __future__ import annotations

import re
from pathlib import Path

from radix._native import ffi, lib

HEADER = Path(__file__).resolve().parents[2] / "native" / "include" / "rdx.h"


def statuses_of_the_header() -> dict[str, int]:
    """Return the macros of the status section, RDX_OK included, the count not."""
    section = HEADER.read_text().split("status codes (status.c)")[1].split("/* ------")[0]
    found = dict(re.findall(r"#define (RDX_\w+) (\d+)", section))
    found.pop("RDX_STATUS_COUNT")
    return {name: int(value) for name, value in found.items()}


def test_statuses_are_numbered_without_a_gap() -> None:
    assert sorted(statuses_of_the_header().values()) == list(range(lib.RDX_STATUS_COUNT))


def test_every_status_tells_its_name_and_its_own_text() -> None:
    statuses = statuses_of_the_header()
    texts = {ffi.string(lib.rdx_status_text(value)) for value in statuses.values()}
    assert len(texts) == len(statuses)
    assert b"unknown status" not in texts
    for name, value in statuses.items():
        assert ffi.string(lib.rdx_status_name(value)).decode() == name


def test_numbers_beyond_the_statuses_are_unknown() -> None:
    for value in (-1, lib.RDX_STATUS_COUNT, 2**31 - 1):
        assert ffi.string(lib.rdx_status_text(value)) == b"unknown status"
        assert ffi.string(lib.rdx_status_name(value)) == b"unknown status"
