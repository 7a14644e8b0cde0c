"""SGLang's pools of host memory as rows that a tier can copy from and to. Where the pages of a pool
lie at a fixed distance from one another, each of their fragments is a plane and nothing is copied
on the way; where they do not, pages pass through rows of our own, as the flat tensors that the pool
itself makes of them. Either way the bytes of a page are named by what the pool says of its layout
(I24): another layout is another name.

    page_first    K: | page 0 | page 1 | ..      V: | page 0 | page 1 | ..            2 planes
    layer_first   K layer 0: | page 0 | page 1 | ..      V layer 0: ..        2 * layers planes
    state         temporal: | slot 0 | slot 1 | ..      conv 0: ..        1 + parts of conv planes
"""

from __future__ import annotations

import ctypes
import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sglang.srt.mem_cache.pool_host.base import HostKVCache

from radix.engines.versions import installed
from radix.engines.weights import weights_digest
from radix.errors import LayoutMismatchError, UnsupportedError
from radix.groups import Group
from radix.tier import Slots

Bytes = npt.NDArray[np.uint8]

KV = "kv"
# What a pool may say about the bytes of its pages, beside their sizes.
_FACTS = (
    *("layout", "page_size", "dtype", "layer_num", "target_layer_num", "start_layer", "end_layer"),
    *("head_num", "head_dim", "v_head_dim", "head_group_num", "storage_format_tag"),
    *("kv_lora_rank", "qk_rope_head_dim", "kv_cache_dim", "dsa_kv_cache_store_fp8"),
    *("num_mamba_layers", "temporal_state_shape", "temporal_dtype"),
    *("conv_state_shapes", "conv_dtype", "item_bytes", "state_page_bytes", "size_per_token"),
    *("indexer_dtype", "indexer_page_stride_size", "slot_page_size", "swa_page_size"),
)
# What decides the numbers in the cache beside the prompt: of the engine's configuration.
_MODEL_FACTS = (
    *("model_path", "revision", "load_format", "dtype", "quantization", "quantization_param_path"),
    *("kv_cache_dtype", "json_model_override_args", "modelopt_quant", "model_checksum"),
    *("context_length", "model_impl", "model_loader_extra_config", "qsa_indexer_dtype"),
    *("quantize_and_serve", "rl_quant_profile", "custom_weight_loader"),
)
# How a pool says that it does not give its pages in a way: its kind, or its layout, does not.
_NOT_SO = (NotImplementedError, ValueError)
_CHUNKS = 3  # the engine calls from three threads
_MOST_ROWS = 32
_CHUNK_BYTES = 16 << 20


class HostPool:
    """One registered pool: a group of the store.

    ``name``; ``group``; ``arrays``: the rows that the store borrows; ``lent``: they are the pool's
    own memory; ``facts``: what names the bytes of its pages.
    """

    def __init__(self, name: str, pool: Any, *, lend: bool) -> None:
        """Reads the pool's geometry and moves nothing. ``lend``: use its memory where that is
        possible; else pages pass as flat tensors.

        Raises ``UnsupportedError``: a pool without memory, whose pages move about, or that gives
        its pages neither way.
        """
        self.name = name
        self.pool = pool
        self.page_tokens = int(getattr(pool, "page_size", 1) or 1)
        _refuse(name, pool)
        self.rows = int(pool.size) // self.page_tokens
        self._flat = _flat_page(pool)
        planes, why = _planes(pool, self.rows, self.page_tokens) if lend else (None, "not asked")
        flat_bytes = None if self._flat is None else self._flat.numel() * self._flat.element_size()
        if planes is not None and flat_bytes not in (None, sum(size for _, _, size in planes)):
            planes, why = None, f"its fragments are not the {flat_bytes} bytes of a page"
        self.lent = planes is not None
        self._chunks: queue.SimpleQueue[int] = queue.SimpleQueue()
        if planes is not None:
            self.arrays = [_array(plane, self.rows) for plane in planes]
        elif flat_bytes:
            self.chunk_rows = max(1, min(_MOST_ROWS, _CHUNK_BYTES // flat_bytes))
            self.arrays = [np.zeros((_CHUNKS * self.chunk_rows, flat_bytes), np.uint8)]
            for number in range(_CHUNKS):
                self._chunks.put(number)
        else:
            raise UnsupportedError(
                f"host pool {name!r}: a {type(pool).__name__} of layout {_layout(pool)} gives its "
                f"pages neither in place ({why}) nor as flat tensors; start with "
                "--hicache-mem-layout page_first"
            )
        self.block_bytes = sum(array.shape[1] for array in self.arrays)
        self.group = Group.full(name, self.block_bytes)
        self.facts = {key: str(getattr(pool, key)) for key in _FACTS if hasattr(pool, key)}
        self.facts["class"] = type(pool).__name__
        self.facts["fragments"] = str([array.shape[1] for array in self.arrays])
        self.facts["passes"] = "in place" if self.lent else "flat"

    # ------------------------------------------------------------------ indices
    def first_tokens(self, keys: Sequence[str], host_indices: Any) -> npt.NDArray[np.int64]:
        """The first host index of each key's page. ``ValueError`` for another number of indices
        than a page a key, or pages that begin within a page.
        """
        found = np.asarray(host_indices if host_indices is not None else [], np.int64).ravel()
        if len(found) != len(keys) * self.page_tokens:
            raise ValueError(
                f"host_indices of pool {self.name!r} must be {self.page_tokens} a key, "
                f"{len(keys) * self.page_tokens} in all, not {len(found)}"
            )
        first = found[:: self.page_tokens]
        if (first % self.page_tokens).any() or (first < 0).any():
            raise ValueError(f"host_indices of pool {self.name!r} must begin at whole pages")
        if len(first) and int(first.max()) // self.page_tokens >= self.rows:
            raise ValueError(
                f"host_indices of pool {self.name!r} must be below {self.rows * self.page_tokens}"
            )
        return first

    def rows_of(self, first: npt.NDArray[np.int64]) -> Slots:
        """The rows of these pages in the pool's own memory."""
        return (first // self.page_tokens).astype(np.int32)

    # ------------------------------------------------------------------ flat tensors
    @contextmanager
    def chunk(self, count: int) -> Iterator[tuple[Slots, Bytes]]:
        """``count`` rows of our own, at most ``chunk_rows``: their numbers and their bytes. Waits
        while all are taken.
        """
        number = self._chunks.get()
        try:
            first = number * self.chunk_rows
            yield (
                np.arange(first, first + count, dtype=np.int32),
                self.arrays[0][first : first + count],
            )
        finally:
            self._chunks.put(number)

    def page(self, first_token: int) -> torch.Tensor:
        """A copy of a page as the pool makes it, flat. Cost: its bytes."""
        page: torch.Tensor = self.pool.get_data_page(first_token, flat=True)
        return page

    def put_page(self, first_token: int, row: Bytes) -> None:
        """Writes a page into the pool. Cost: its bytes."""
        target = self.empty()
        bytes_of(target)[:] = row
        self.pool.set_from_flat_data_page(first_token, target)

    def empty(self) -> torch.Tensor:
        """A flat page of zeros, of the dtype in which the pool gives and takes pages."""
        if self._flat is None:
            raise LayoutMismatchError(f"host pool {self.name!r} takes no flat pages")
        return torch.zeros_like(self._flat)


def bytes_of(tensor: torch.Tensor) -> Bytes:
    """The bytes of a contiguous tensor in host memory, not copied. ``ValueError`` for another."""
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError("a page must be a contiguous tensor in host memory")
    found: Bytes = tensor.view(-1).view(torch.uint8).numpy()
    return found


def model_facts() -> dict[str, str]:
    """What the engine's configuration says of the weights and of what the cache holds, and what
    lies in the model's folder: the name that it tells a storage is whatever the server is to be
    called. Empty outside an engine. Cost: 16 reads a file of weights.
    """
    model = _published("model")
    facts = {key: str(getattr(model, key)) for key in _MODEL_FACTS if hasattr(model, key)}
    if "model_path" in facts:
        facts["weights"] = weights_digest(facts["model_path"])
        facts["images"] = str(getattr(_published("mm"), "mm_process_config", None))
        facts["sglang"] = installed("sglang")
    return facts


def has_adapters() -> bool:
    """Whether the engine serves LoRA adapters, which its hashes know by name and path alone."""
    return bool(getattr(_published("lora"), "enable_lora", False))


def _published(namespace: str) -> Any | None:
    """A part of the engine's configuration; None where no engine runs in this process."""
    try:
        from sglang.srt.runtime_context import get_context

        return get_context().config_bag(namespace)
    except (ImportError, ValueError):
        return None


def logical_dtype(pool: Any, stated: str) -> str:
    """What the numbers of a KV pool mean. The engine keeps fp8 of either kind as plain bytes, so
    that the dtype of the pool does not tell two caches apart; its configuration does.

    Raises ``UnsupportedError`` where nobody tells.
    """
    told = stated or model_facts().get("kv_cache_dtype", "")
    if not told and str(getattr(pool, "dtype", "")) in ("torch.uint8", "torch.int8"):
        raise UnsupportedError(
            "the KV cache is kept as plain bytes, and the engine does not say what they mean: "
            "name it with 'kv_dtype' in --hicache-storage-backend-extra-config"
        )
    return told


def _refuse(name: str, pool: Any) -> None:
    where = f"host pool {name!r}: a {type(pool).__name__}"
    if getattr(pool, "shared_allocation_domain", None) is not None:
        raise UnsupportedError(f"{where} moves its pages while they are in use")
    if int(getattr(pool, "dcp_size", 1)) > 1:
        raise UnsupportedError(f"{where} is divided by decode context parallelism")
    if int(getattr(pool, "size_per_token", 1)) < 1 or int(pool.size) < 1:
        raise UnsupportedError(
            f"{where} has no memory: models whose pages are only numbers (DeepSeek V4) need "
            "HiCache's own file backend"
        )
    if not isinstance(pool, HostKVCache):
        raise UnsupportedError(f"{where} is not a pool whose pages lie where their index says")


def _layout(pool: Any) -> str:
    return str(getattr(pool, "layout", "unknown"))


def _flat_page(pool: Any) -> torch.Tensor | None:
    """An empty flat page, where the pool gives its pages as such."""
    try:
        page: object = pool.get_dummy_flat_data_page()
        given: object = pool.get_data_page(0, flat=True)
    except _NOT_SO:
        return None
    if not isinstance(page, torch.Tensor) or not isinstance(given, torch.Tensor):
        return None
    return page if 0 < page.nbytes == given.nbytes else None


Plane = tuple[int, int, int]  # address, distance from page to page, bytes


def _planes(pool: Any, rows: int, page_tokens: int) -> tuple[list[Plane] | None, str]:
    """Where the fragments of every page lie, or why that cannot be said."""
    if not hasattr(pool, "get_page_buffer_meta"):  # the engine's base class does not ask for it
        return None, "it names no fragments"
    pages = sorted({0, 1, 2, rows // 3, rows // 2, rows - 2, rows - 1} & set(range(rows)))
    fragments = []
    for page in pages:
        indices = torch.arange(page * page_tokens, (page + 1) * page_tokens)
        try:
            found = pool.get_page_buffer_meta(indices)
        except _NOT_SO as error:
            return None, str(error)
        if not found or not found[0] or len(found[0]) != len(found[1]):
            return None, "it names no fragments"
        fragments.append([*map(tuple, zip(*found, strict=True))])
    first = fragments[0]
    after = [(address + size, size) for address, size in first]
    if len(fragments) > 1:
        after = fragments[1]
    planes = [
        (address, other - address, size)
        for (address, size), (other, _) in zip(first, after, strict=False)
    ]
    for page, found in zip(pages, fragments, strict=True):
        if found != [(address + page * stride, size) for address, stride, size in planes]:
            return None, "its pages do not lie at one distance from one another"
    if any(stride < size or size < 1 for _, stride, size in planes):
        return None, "its pages overlap"
    return planes, ""


def _array(plane: Plane, rows: int) -> Bytes:
    """The plane as rows; the memory stays the pool's."""
    address, stride, size = plane
    memory = (ctypes.c_uint8 * (stride * (rows - 1) + size)).from_address(address)
    flat = np.frombuffer(memoryview(memory), np.uint8)
    return np.lib.stride_tricks.as_strided(flat, (rows, size), (stride, 1))
