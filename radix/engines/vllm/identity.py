"""Which blocks of earlier runs are this run's: everything that decides what the bytes under a block
hash mean goes into the namespace, and nothing that changes from start to start. What cannot be
known is refused over a persistent tier. Keeps C27 and C28: different settings never share a key.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from radix.engines.vllm.geometry import Geometry
from radix.engines.vllm.options import Options
from radix.errors import UnsupportedError
from radix.keys import Namespace
from radix.keysets import HASHED_BYTES

ADAPTERS = "adapters"  # the fact that says how the engine's hashes know adapters, "" where none are
MODEL = "model"  # the fact that only who sees the engine's whole configuration knows
KEY_BYTES = HASHED_BYTES
ROOT_BYTES = 16  # the beginning of a block's name in events of the store: its namespace
GROUP_BYTES = 4  # the end of a key names its group, big-endian
# Algorithms that hash a pickle, whose bytes depend on the Python that writes it.
_PICKLING = ("sha256", "xxhash")
_SEEDED = ("xxhash", "xxhash_cbor")
_STRONG_BYTES = 32
_SEED = "PYTHONHASHSEED"


def hash_is_stable(
    algorithm: str, none_hash: bytes | None, environment: Mapping[str, str] = os.environ
) -> bool:
    """Whether block hashes are equal in every process with equal settings.

    ``algorithm``: the engine's name of it, "" where unknown; ``none_hash``: the hash from which
    chains start, None before there is one: it has the length of the algorithm's hashes.
    """
    if environment.get(_SEED):
        return True
    if none_hash is not None:
        return len(none_hash) >= _STRONG_BYTES and algorithm not in _SEEDED
    return algorithm not in _SEEDED


def require_stable_hashes(
    options: Options,
    algorithm: str,
    none_hash: bytes | None = None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Raises ``UnsupportedError`` for a directory, or a service, under hashes that the next start
    cannot find.
    """
    if not options.lasting or hash_is_stable(algorithm, none_hash, environment):
        return
    raise UnsupportedError(
        f"{options.lasting}: block hashes of {algorithm or 'this algorithm'} start "
        f"from a random seed in every process, so nothing kept would ever be found; set "
        f"--prefix-caching-hash-algo sha256_cbor, or {_SEED} to a fixed value"
    )


def require_named_adapters(options: Options, facts: Mapping[str, str]) -> None:
    """Raises ``UnsupportedError`` for what lasts under adapters (LoRA) without a ``revision``: the
    engine's hashes know an adapter by name and path alone, and other weights may lie there at the
    next start.
    """
    if options.lasting and facts.get(ADAPTERS) and not options.revision:
        raise UnsupportedError(
            f"{options.lasting} with --enable-lora: block hashes know an adapter by "
            "its name and path alone; give a revision, and another one whenever the files of an "
            "adapter are replaced"
        )


def require_known_model(options: Options, facts: Mapping[str, str]) -> None:
    """Raises ``UnsupportedError`` for what lasts where the engine did not show its configuration:
    other weights of the same name would be served what these have stored.
    """
    if options.lasting and MODEL not in facts:
        raise UnsupportedError(
            f"{options.lasting}: this version of the engine shows its workers no "
            "configuration, so nothing tells one model's blocks from another's at the next start; "
            "leave out directory and disk_bytes, or service"
        )


def namespace(config: Any, geometry: Geometry, options: Options, none_hash: bytes) -> Namespace:
    """The namespace of everything that this engine stores.

    ``config``: the engine's OffloadingConfig; ``none_hash``: the hash from which its chains start.
    The engine's id, ranks and budgets are not in it. Cost: the layers.
    """
    facts = dict(geometry.facts)
    parallel = config.parallel
    said: dict[str, object] = {
        "engine": "vllm",
        "dtype": config.model.dtype,
        "kv_cache_layout": config.kv_cache_layout or "",
        "tokens_per_hash": config.cache.tokens_per_hash,
        "blocks_per_chunk": config.cache.blocks_per_chunk,
        "tp": parallel.tp_size,
        "pp": parallel.pp_size,
        "pcp": parallel.pcp_size,
        "dcp": parallel.dcp_size,
        "world": parallel.world_size,
        "groups": [
            [group.group_id, group.tokens_per_block, list(group.layer_names)]
            for group in config.groups
        ],
        "pages": [list(pages) for pages in geometry.pages],
        "facts": sorted(facts.items()),
        "none_hash": none_hash.hex(),
    }
    if facts.get("hash_algorithm", "") in ("", *_PICKLING):
        said["python"] = ".".join(platform.python_version_tuple()[:2])
    layout = json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
    return Namespace(model=config.model.name, layout=layout, revision=options.revision)


class KeyReader:
    """The engine's keys as ours: a block hash and the group that it is of."""

    def __init__(self, group_ids: Sequence[int]) -> None:
        """``group_ids``: the engine's numbers of the groups, in our order."""
        self._numbers = {
            group_id.to_bytes(GROUP_BYTES, "big"): number
            for number, group_id in enumerate(group_ids)
        }

    def read(self, keys: Sequence[bytes]) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.uint8]]:
        """Our group of each key, (n,) int16, and the keys of the store, (n, 32) uint8, in order.

        Hashes of 32 bytes stand as they are, others are hashed. ``ValueError`` for a group that the
        configuration does not have. Cost: the keys.
        """
        try:
            groups = [self._numbers[key[-GROUP_BYTES:]] for key in keys]
        except KeyError as error:
            raise ValueError(
                f"a key of group {int.from_bytes(error.args[0], 'big')}; the engine's groups are "
                f"{[int.from_bytes(group, 'big') for group in self._numbers]}"
            ) from None
        hashes = bytearray(b"".join([_of_key_bytes(key[:-GROUP_BYTES]) for key in keys]))
        return np.array(groups, np.int16), np.frombuffer(hashes, np.uint8).reshape(-1, KEY_BYTES)


def _of_key_bytes(block_hash: bytes) -> bytes:
    if len(block_hash) == KEY_BYTES:
        return block_hash
    return hashlib.sha256(block_hash).digest()
