"""Namespaces and page keys are the same bytes for ever and everywhere: what one process stores
another finds, whatever its hash seed (C26).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xxhash

from radix.keys import Namespace, page_keys, root_key

VECTORS = json.loads((Path(__file__).parent / "key_vectors.json").read_text())
IDS = [vector["name"] for vector in VECTORS]

PRINT_KEYS = """
import json, sys
from radix.keys import Namespace, page_keys, root_key
for vector in json.load(sys.stdin):
    fields = vector["namespace"]
    for name in ("layout", "salt", "content"):
        fields[name] = bytes.fromhex(fields[name])
    space = Namespace(**fields)
    key = root_key(space.canonical())
    pages = page_keys(key, vector["tokens"], vector["page_tokens"])
    print(space.canonical().hex(), key.hex(), pages.tobytes().hex())
"""


def namespace(vector: dict[str, dict[str, str]]) -> Namespace:
    """The namespace of a vector."""
    fields = dict(vector["namespace"])
    raw = {name: bytes.fromhex(fields.pop(name)) for name in ("layout", "salt", "content")}
    return Namespace(**fields, **raw)


@pytest.mark.parametrize("vector", VECTORS, ids=IDS)
def test_encoding_and_keys_equal_the_golden_vectors(vector: dict[str, object]) -> None:
    space = namespace(vector)
    assert space.canonical().hex() == vector["canonical"]
    assert Namespace.parse(space.canonical()) == space
    assert root_key(space.canonical()).hex() == vector["root_key"]
    keys = page_keys(root_key(space.canonical()), vector["tokens"], vector["page_tokens"])
    assert [row.tobytes().hex() for row in keys] == vector["page_keys"]


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_keys_are_equal_in_a_process_with_another_hash_seed(seed: str) -> None:
    """C26 (LMCache#1139): the root's hash was random in each process, so a restart hit nothing."""
    done = subprocess.run(
        [sys.executable, "-c", PRINT_KEYS],
        input=json.dumps(VECTORS),
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = [
        f"{vector['canonical']} {vector['root_key']} {''.join(vector['page_keys'])}"
        for vector in VECTORS
    ]
    assert [line.rstrip() for line in done.stdout.splitlines()] == [e.rstrip() for e in expected]


def test_page_keys_are_the_public_hash_chained() -> None:
    """The rule is written down, so that another language can compute the same keys."""
    parent = bytes(range(16))
    tokens = (np.arange(40) * 1_000_003_001 % (1 << 31)).astype(np.int32)
    expected, key = [], parent
    for start in range(0, 36, 12):
        key = xxhash.xxh3_128_digest(key + tokens[start : start + 12].astype("<i4").tobytes())
        expected.append(key)
    assert [row.tobytes() for row in page_keys(parent, tokens, 12)] == expected
