"""A pytest plugin for vLLM's own tests of the offloading connector: our manager behind their mock.

Their request runner drives vLLM's real scheduler over a mock of the manager, which each test
scripts, and a mock of the worker. Here every call of the manager goes to ours as well, over a real
flat store with a host tier, and ours is what answers: keys are those that it takes, slots those
that it gives, hits those that it has. What a test scripts still limits it, so that the case that
the test is about comes about: a scripted MISS, RETRY or HIT_PENDING stays one, a scripted refusal
of a store stays one, a shorter list of keys is the list that ours is asked about. What is loaded is
what was stored in the slots that ours names, so that a block from a wrong slot is found.
"""

from __future__ import annotations

import atexit
import importlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.kv_offload.base import LookupResult, PrepareStoreOutput

from radix.engines.vllm.geometry import Geometry
from radix.engines.vllm.identity import KEY_BYTES
from radix.engines.vllm.offload import Offload
from radix.engines.vllm.options import Options
from radix.engines.vllm.worker import Slots
from radix.keys import Namespace
from radix.store import FlatStore
from tiers.host import HostTier

RUNNER = "tests.v1.kv_connector.unit.offloading_connector.utils"
RIG = "tests.v1.kv_connector.unit.utils"
OPT_125M = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 768,
    "ffn_dim": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 2048,
    "vocab_size": 50272,
    "word_embed_proj_dim": 768,
    "do_layer_norm_before": True,
    "torch_dtype": "float16",
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
HOST_BYTES = 1 << 20
PAGE_BYTES = 64
_PASSED_ON = (
    *["on_new_request", "on_request_finished", "lookup", "get_load_source", "touch"],
    *["prepare_store", "complete_store", "complete_load", "on_schedule_end"],
    *["has_pending_work", "take_events", "reset_cache", "shutdown"],
)

_made: list[Offload] = []


def _offload(config: Any) -> Offload:
    """Our manager for an engine of this configuration, with blocks of a few bytes."""
    geometry = Geometry(
        config.parallel.world_size,
        config.cache.blocks_per_chunk,
        tuple(group.group_id for group in config.groups),
        tuple((PAGE_BYTES,) for _ in config.groups),
        (("hash_algorithm", "sha256"),),
    )
    store = FlatStore(
        geometry.groups(),
        [HostTier(HOST_BYTES)],
        key_bytes=KEY_BYTES,
        events=bool(config.enable_kv_cache_events),
    )
    made = Offload(
        store=store,
        geometry=geometry,
        namespace=lambda: Namespace(model="stand-in"),
        options=Options(host_bytes=HOST_BYTES),
        config=config,
    )
    _made.append(made)
    return made


def _places(slots: Slots) -> list[tuple[int, int]]:
    """Group and slot of each block of a transfer, in order."""
    return list(zip(slots.groups.tolist(), slots.slots.tolist(), strict=True))


def _asked(mock: type) -> type:
    """The class of a method of the mock: a test scripts and counts it as ever, and ours is asked
    behind it. ``mock``: the class of the mock that the tests make.
    """

    class Asked(mock):
        """A method that ours answers."""

        def __call__(self, *args: Any, **named: Any) -> Any:
            scripted = super().__call__(*args, **named)
            answer: Callable[..., Any] | None = self.__dict__.get("radix_answer")
            return scripted if answer is None else answer(scripted, *args, **named)

    return Asked


class Answers:
    """What the manager's mock answers: ours, within what the test scripts."""

    def __init__(self, ours: Offload, transfer: Callable[[list[bytes]], Any]) -> None:
        self._ours = ours
        self._transfer = transfer
        self._stored: dict[tuple[int, int], bytes] = {}  # by group and slot: the last key stored

    def lookup(self, scripted: Any, key: Any, context: Any) -> Any:
        """Ours where the script says HIT; anything less of the script stays."""
        if scripted is LookupResult.HIT:
            self._plant([key], context)
        found = self._ours.lookup(key, context)
        return found if scripted is LookupResult.HIT else scripted

    def _plant(self, keys: list[bytes], context: Any) -> None:
        """Keep what a test takes for kept although nobody offered it, as an earlier request would
        have brought it about.
        """
        blocks = self._ours._blocks
        if self._ours._namespace is not None:
            self._ours.on_new_request(context)
        groups, names = blocks.reader.read(keys)
        for key, group, name in zip(keys, groups.tolist(), names, strict=True):
            lacks = self._ours.store.probe(name.tobytes(), group, namespace=blocks.space) < 0
            if lacks and key not in self._ours._ledger.filling:
                part = self._ours.store.reserve(name[None], group, namespace=blocks.space)
                self._stored[group, int(part.slots[0])] = key
                self._ours.store.commit(part)

    def prepare_store(self, scripted: Any, keys: Any, context: Any) -> Any:
        """Ours, asked for the keys that the script takes."""
        if scripted is None:
            return None
        asked = scripted.keys_to_store if isinstance(scripted, PrepareStoreOutput) else keys
        given = self._ours.prepare_store(list(asked), context)
        if given is None:
            return None
        stored = list(given.keys_to_store)
        self._stored.update(zip(_places(given.store_spec), stored, strict=True))
        return PrepareStoreOutput(stored, self._transfer(stored), list(given.evicted_keys))

    def prepare_load(self, keys: Any, context: Any) -> Any:
        """Ours: what was stored in its slots."""
        asked = list(keys)
        self._plant(asked, context)
        places = _places(self._ours.prepare_load(asked, context))
        return self._transfer([self._stored[place] for place in places])

    def told(self, name: str) -> Callable[..., Any]:
        """Any other method: ours hears it, the script answers."""

        def answer(scripted: Any, *args: Any, **named: Any) -> Any:
            heard = getattr(self._ours, name)(*args, **named)
            if name == "take_events":
                list(heard)
            return scripted

        return answer


def _model_at_hand(folder: Path) -> None:
    """The runner names a published model, of which it needs the configuration alone: one of the
    same shape lies here, so that nothing is downloaded.
    """
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "config.json").write_text(json.dumps(OPT_125M))
    create = importlib.import_module(RIG).create_vllm_config
    create.__defaults__ = (str(folder), *create.__defaults__[1:])


def pytest_configure(config: pytest.Config) -> None:
    """Put our manager into the specification that the runner names to vLLM."""
    _model_at_hand(Path(tempfile.mkdtemp(prefix="radix-opt-")))
    utils = importlib.import_module(RUNNER)

    class MockOffloadingSpec(utils.MockOffloadingSpec):
        """The runner's specification over our manager."""

        def get_manager(self) -> Any:
            """The mock, its methods answered by ours."""
            method = _asked(type(self.manager.lookup))
            answers = Answers(_offload(self.config), utils.MockLoadStoreSpec)
            for name in _PASSED_ON:
                scripted = getattr(self.manager, name)
                asked = method(return_value=scripted.return_value)
                answer = getattr(answers, name, None) or answers.told(name)
                asked.__dict__["radix_answer"] = answer
                setattr(self.manager, name, asked)
            self.manager.prepare_load = answers.prepare_load
            return self.manager

    utils.MockOffloadingSpec = MockOffloadingSpec


@pytest.fixture(autouse=True)
def _ours_is_whole_after_each_test() -> Iterator[None]:
    """Every invariant of the managers that a test made, before they go."""
    yield
    made, _made[:] = list(_made), []
    for offload in made:
        if not offload.store.gate.closed:
            offload.check()
        offload.shutdown()
