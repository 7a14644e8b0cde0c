"""How blocks of vLLM's host pool are named on disk: a namespace for all that decides what the bytes
under a hash mean, in it the cache group and the generation of the weights; the block hash is the
key. Keeps C27 and C28: different settings never share a name. What is unknown makes a name that
nobody else finds.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
from vllm.config import VllmConfig, get_current_vllm_config_or_none
from vllm.platforms import current_platform
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import KVCacheConfig

from radix.engines.versions import installed
from radix.engines.vllm import identity
from radix.engines.vllm.disk_options import DiskOptions
from radix.engines.vllm.facts import (
    FULL,
    facts_of_config,
    kinds_of_groups,
    processor,
    require_known_kinds,
    require_whole_chunks,
)
from radix.engines.vllm.geometry import Geometry
from radix.engines.vllm.identity import GROUP_BYTES, KEY_BYTES, KeyReader
from radix.engines.vllm.options import Options
from radix.keys import Namespace
from radix.tier import Keys, Restored
from tiers.disk import DiskTier

_LOG = logging.getLogger(__name__)
_GENERATION_BYTES = 16
_FIRST_GENERATION = bytes(_GENERATION_BYTES)  # of the weights that the model's name stands for

EndOf = Callable[[bytes], int | None]  # where a key's tokens end in its request, None where unknown


@dataclass(frozen=True, slots=True)
class Part:
    """The keys of a set that are of one cache group: ``index`` are their places in the set,
    ``positions`` their chunks in the request, -1 where unknown.
    """

    space: Namespace
    keys: Keys
    positions: npt.NDArray[np.int64]
    index: npt.NDArray[np.int64]


class Names:
    """The engine's keys as the names of our blocks.

    ``spaces``: the namespace of each cache group; ``split``: a set of keys by group; ``one``: a
    single key; ``hide``: names from now on that no block has yet; ``key_of``: the way back, as long
    as ``reversible``.
    """

    def __init__(self, spec: Any, options: DiskOptions, rows: int, row_bytes: int) -> None:
        """``spec``: the engine's OffloadingSpec; ``rows`` of ``row_bytes``: its host pool. Raises
        ``UnsupportedError`` where the engine says already that its hashes start from a random seed,
        or where its chunks may lack some of their blocks, or hold something of an unknown kind.
        """
        self._config = config = spec.config
        layers = [name for group in config.groups for name in group.layer_names]
        kinds = kinds_of_groups(layers, _started_with(KVCacheConfig))
        require_known_kinds(kinds)
        if config.cache.blocks_per_chunk > 1:
            # What a state's chunk lacks the engine's own worker leaves as it lay there.
            require_whole_chunks(kinds, FULL)
        whole = get_current_vllm_config_or_none() or _started_with(VllmConfig)
        facts = _facts(spec, whole)
        self._algorithm = facts["hash_algorithm"]
        self._options = Options(
            host_bytes=rows * row_bytes,
            directory=options.directory,
            disk_bytes=options.limit_bytes,
            policy=options.policy,
            revision=options.revision,
        )
        identity.require_stable_hashes(self._options, self._algorithm)
        identity.require_named_adapters(self._options, facts)
        self._ids: list[int] = [group.group_id for group in config.groups]
        self._geometry = Geometry(
            world=config.parallel.world_size,
            blocks_per_chunk=config.cache.blocks_per_chunk,
            group_ids=tuple(self._ids),
            pages=((row_bytes,),) * len(self._ids),
            facts=tuple(sorted(facts.items())),
        )
        chunk = config.cache.blocks_per_chunk
        self._chunk_tokens = [group.tokens_per_block * chunk for group in config.groups]
        self._reader = KeyReader(self._ids)
        self._numbers = {n.to_bytes(GROUP_BYTES, "big"): i for i, n in enumerate(self._ids)}
        self.reversible = True
        self._generation = _FIRST_GENERATION
        self._base: Namespace | None = None
        self._spaces: list[Namespace] = []
        if whole is None:
            _LOG.warning(
                "RadixDiskTier: this version of the engine shows no configuration, so nothing "
                "tells one model's blocks from another's: those of earlier runs are not found"
            )
            self.hide()

    @property
    def known(self) -> bool:
        """Whether the namespaces are known: from the first request on."""
        return bool(self._spaces)

    def spaces(self) -> list[Namespace]:
        """The namespace of each cache group, in the order of the configuration. Raises
        ``UnsupportedError`` where hashes turn out to start from a random seed.
        """
        if not self._spaces:
            if self._base is None:
                self._base = self._first()
            self._spaces = [
                replace(self._base, content=number.to_bytes(GROUP_BYTES, "big") + self._generation)
                for number in self._ids
            ]
        return self._spaces

    def _first(self) -> Namespace:
        """Only once requests come: the hash that chains start from is not there before. Without one
        there are no hashes either, and keys mean nothing to another process.
        """
        none_hash: bytes | None = getattr(kv_cache_utils, "NONE_HASH", None)
        if none_hash is None:
            none_hash = os.urandom(KEY_BYTES)
        else:
            identity.require_stable_hashes(self._options, self._algorithm, none_hash)
        return identity.namespace(self._config, self._geometry, self._options, none_hash)

    def hide(self) -> None:
        """From now on keys have names of this process alone: what has one already is not found by
        it any more, and what gets one is found by nobody later.
        """
        self._generation = os.urandom(_GENERATION_BYTES)
        self._spaces = []

    def one(self, key: bytes) -> tuple[Namespace, bytes]:
        """Where a single key is looked for, and as what. ``ValueError`` for a group that is not
        configured. Cost: O(1).
        """
        name = key[:-GROUP_BYTES]
        group = self._numbers.get(key[-GROUP_BYTES:])
        if group is None or len(name) != KEY_BYTES:
            groups, names = self._reader.read([key])
            group, name = int(groups[0]), names.tobytes()
        return self.spaces()[group], name

    def split(self, keys: list[bytes], end_of: EndOf) -> list[Part]:
        """A set of keys by cache group. ``ValueError`` as ``one``. Cost: the keys."""
        spaces = self.spaces()
        groups, names = self._reader.read(keys)
        self.reversible &= all(len(key) == KEY_BYTES + GROUP_BYTES for key in keys)
        places = np.array([end_of(key) or 0 for key in keys], np.int64)
        parts = []
        for group in dict.fromkeys(groups.tolist()):
            index = np.flatnonzero(groups == group)
            chunks = (places[index] - 1) // self._chunk_tokens[group]
            positions = np.where(places[index] > 0, chunks, -1)
            parts.append(Part(spaces[group], names[index], positions, index))
        return parts

    def key_of(self, name: bytes, group: int) -> bytes:
        """The engine's key of a block: right for hashes of 32 bytes, which stand as they are."""
        return name + self._ids[group].to_bytes(GROUP_BYTES, "big")


class LastingDisk(DiskTier):
    """A disk tier that lets go, at the start, what nobody can find any more: blocks of weights that
    only the process had that stored them.
    """

    def restore(self) -> list[Restored]:
        """As ``DiskTier.restore``, of the weights alone that the model's name stands for."""
        lasting = []
        for found in super().restore():
            if _lasts(found.records.namespace):
                lasting.append(found)
            else:
                self.free(found.group, found.slots)
        return lasting


def _lasts(namespace: bytes) -> bool:
    """Whether a later process can know a namespace, by its canonical bytes."""
    try:
        content = Namespace.parse(namespace).content
    except ValueError:
        return False
    return content[GROUP_BYTES:] == _FIRST_GENERATION


def _started_with(kind: type) -> Any | None:
    """What of this class the engine's own frames, that called us, are just starting a scheduler
    with. It is handed to no tier, but decides what the bytes of a block are. None where no frame
    has one.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        for value in frame.f_locals.values():
            if isinstance(value, kind):
                return value
        frame = frame.f_back
    return None


def _facts(spec: Any, whole: Any | None) -> dict[str, str]:
    """What decides what the bytes mean, beside what the spec's own configuration says."""
    config = spec.config
    said = {
        "memory": "rows of the engine's host pool",
        "vllm": installed("vllm"),
        "device": " ".join(_device()),
        "hash_algorithm": "",
        "worker_bytes_per_block": str(config.worker_kv_bytes_per_block),
        "replicated_layout": str(bool(spec.replicated_layout)),
        "canonical_layout": str(bool(config.canonical_layout)),
    }
    if whole is not None:
        said |= facts_of_config(whole)
        said["attention"] = str(whole.attention_config)
    return said


def _device() -> Iterable[str]:
    """The device, without opening it: the scheduler has none."""
    yield current_platform.device_type
    yield str(current_platform.get_device_capability())
    if current_platform.is_cpu():  # a backend packs keys as the vector unit likes them
        yield processor()
