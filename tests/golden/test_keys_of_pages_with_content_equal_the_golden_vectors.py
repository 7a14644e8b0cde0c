"""Keys of pages with images in them are the same bytes for ever and everywhere, whatever the hash
seed of the process (C26, C29), and the rule by which they are made is written down here, so that
another language can make them too.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xxhash

from radix.content import Content, page_rows
from radix.keys import Namespace

VECTORS = json.loads((Path(__file__).parent / "content_vectors.json").read_text())
IDS = [vector["name"] for vector in VECTORS]

PRINT_KEYS = """
import json, sys
from radix.content import Content, page_rows
for vector in json.load(sys.stdin):
    contents = [Content(at, length, bytes.fromhex(raw)) for at, length, raw in vector["contents"]]
    for keys in ("xxh3", "sha256"):
        rows = page_rows(
            vector["tokens"], contents, vector["page_tokens"],
            keys=keys, namespace=bytes.fromhex(vector["namespace"]),
        )
        print(rows.tobytes().hex())
"""


def by_the_rule(vector: dict[str, object], keys: str) -> list[str]:
    """The keys as the rule says, one token at a time."""
    namespace, page = bytes.fromhex(str(vector["namespace"])), int(str(vector["page_tokens"]))
    tokens, spans = list(vector["tokens"]), sorted(vector["contents"])
    if keys == "xxh3":
        key = xxhash.xxh3_128_digest(namespace)
    else:
        key = hashlib.sha256(b"radix-start-1" + namespace).digest()
    result = []
    for start in range(0, len(tokens) - page + 1, page):
        text = b"".join(token.to_bytes(4, "little") for token in tokens[start : start + page])
        places = b""
        for offset, length, digest in spans:
            covered = [at for at in range(start, start + page) if offset <= at < offset + length]
            if covered:
                first, raw = covered[0], bytes.fromhex(digest)
                for number in (first - start, first - offset, length):
                    places += number.to_bytes(4, "big")
                places += bytes([len(raw)]) + raw
        if keys == "xxh3" and not places:
            key = xxhash.xxh3_128_digest(key + text)
        else:
            key = hashlib.sha256(key + text + places).digest()[: 16 if keys == "xxh3" else 32]
        result.append(key.hex())
    return result


@pytest.mark.parametrize("vector", VECTORS, ids=IDS)
@pytest.mark.parametrize("keys", ["xxh3", "sha256"])
def test_keys_equal_the_golden_vectors_and_the_rule(vector: dict[str, object], keys: str) -> None:
    contents = [Content(at, length, bytes.fromhex(raw)) for at, length, raw in vector["contents"]]
    rows = page_rows(
        vector["tokens"],
        contents,
        vector["page_tokens"],
        keys=keys,
        namespace=bytes.fromhex(vector["namespace"]),
    )
    made = [row.tobytes().hex() for row in rows]
    assert made == vector[keys]
    assert made == by_the_rule(vector, keys)


def test_the_vectors_are_of_namespaces_and_differ() -> None:
    """No vector repeats another, and each namespace is one."""
    for vector in VECTORS:
        Namespace.parse(bytes.fromhex(vector["namespace"]))
    last = [vector[keys][-1] for vector in VECTORS for keys in ("xxh3", "sha256") if vector[keys]]
    assert len(set(last)) == len(last)


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_keys_are_equal_in_a_process_with_another_hash_seed(seed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINT_KEYS],
        input=json.dumps(VECTORS),
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = ["".join(vector[keys]) for vector in VECTORS for keys in ("xxh3", "sha256")]
    assert done.stdout.split("\n")[:-1] == expected


def test_the_order_of_contents_and_of_bytes_in_memory_does_not_matter() -> None:
    vector = VECTORS[1]
    contents = [Content(at, length, bytes.fromhex(raw)) for at, length, raw in vector["contents"]]
    for tokens in (
        np.array(vector["tokens"], ">i8"),
        np.array(vector["tokens"], np.uint32),
        tuple(vector["tokens"]),
    ):
        rows = page_rows(
            tokens,
            contents[::-1],
            vector["page_tokens"],
            namespace=bytes.fromhex(vector["namespace"]),
        )
        assert [row.tobytes().hex() for row in rows] == vector["sha256"]
