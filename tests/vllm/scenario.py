"""What the scenarios share: prompts served cold and again, the hits as both sides count them, and
damage to the files of a disk tier."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from radix.events import RequestState
from tests.vllm.models import Model
from tests.vllm.rig import Engine, Outcome, prompt
from tests.vllm.table import Row

MIB = 1 << 20
LENGTH = 1500
# What of a prompt of LENGTH tokens can be a hit: whole blocks, never the last token.
REACHABLE = {"llama": 1472, "gemma3": 1472, "qwen3_next": 1280}
QUERIES = "vllm:external_prefix_cache_queries"
HITS = "vllm:external_prefix_cache_hits"
LOADED = "vllm:radix_loaded_blocks"
BLOCK_TOKENS = {"llama": 32, "gemma3": 32, "qwen3_next": 256}
# Blocks of groups that remember less than all: a window of 128 has four at most, a state is one.
AT_THE_END = {"llama": 0, "gemma3": 4, "qwen3_next": 1}
# Block sums are added in another order when a prompt's start is not computed again.
LOGPROB_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}

PAGE = 4096
ENDS = (RequestState.GENERATION_DONE, RequestState.FINALIZED, RequestState.RELEASED)

Record = Callable[[Row], None]


class Counted:
    """Reads an engine's counters as they grow: each look tells what came since the last one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last = engine.metrics()
        self._since = time.monotonic()

    def look(self) -> dict[str, float]:
        """What every counter grew by since the last look."""
        now = self._engine.metrics()
        grown = {name: value - self._last.get(name, 0) for name, value in now.items()}
        self._last = now
        return grown

    def seconds(self) -> float:
        """How long it is since the last time this was asked."""
        before, self._since = self._since, time.monotonic()
        return self._since - before


def row(
    scenario: str, model: Model, mode: str, counted: Counted, *, equal: bool, requests: int = 1
) -> tuple[Row, dict[str, float]]:
    """The row of what happened since the last look, and the counters behind it.

    ``requests``: how many of those that were asked hit anything.
    """
    grown = counted.look()
    made = Row(
        scenario,
        model.name,
        mode,
        int(grown.get(QUERIES, 0)),
        int(grown.get(HITS, 0)),
        our_hits(model, grown, requests),
        equal,
        counted.seconds(),
    )
    return made, grown


def our_hits(model: Model, grown: dict[str, float], requests: int) -> int:
    """The prompt tokens that the adapter gave, from the blocks that it says it handed to workers.

    A request loads the blocks of its hit in the full group, and of a window or a recurrent group
    those at its end.
    """
    blocks = int(grown.get(LOADED, 0))
    at_the_end = AT_THE_END[model.name] * (requests if blocks else 0)
    return (blocks - at_the_end) * BLOCK_TOKENS[model.name]


def same_tokens(ones: Iterable[Outcome], others: Iterable[Outcome]) -> bool:
    """Whether two runs of the same prompts generated the same tokens."""
    return [one.tokens for one in ones] == [other.tokens for other in others]


def same_logprobs(model: Model, ones: Sequence[Outcome], others: Sequence[Outcome]) -> bool:
    """Whether each token was as likely in one run as in the other, within the dtype's means."""
    tolerance = LOGPROB_TOLERANCE[model.dtype]
    for one, other in zip(ones, others, strict=True):
        assert one.logprobs is not None and other.logprobs is not None
        for a, b in zip(one.logprobs, other.logprobs, strict=True):
            if not math.isclose(a, b, abs_tol=tolerance):
                return False
    return True


def varied(outcomes: Sequence[Outcome]) -> bool:
    """Whether the text says something: equal tokens of a model that repeats itself prove little."""
    return all(len(set(outcome.tokens)) >= len(outcome.tokens) // 2 for outcome in outcomes)


def prompts(*numbers: int) -> list[list[int]]:
    """Prompts of LENGTH tokens, by number."""
    return [prompt(number, LENGTH) for number in numbers]


def damage(directory: Path, share: float) -> int:
    """Flip a bit in so large a share of the pages of slab files that hold anything, the first of
    them; how many bits.
    """
    flipped = 0
    for slab in sorted(directory.rglob("slab-*")):
        raw = bytearray(slab.read_bytes())
        pages = [place for place in range(0, len(raw), PAGE) if any(raw[place : place + PAGE])]
        for place in pages[: math.ceil(len(pages) * share)]:
            raw[place + 64] ^= 1
            flipped += 1
        slab.write_bytes(raw)
    return flipped


def hits(outcomes: Iterable[Outcome]) -> int:
    """The prompt tokens of all requests that were not computed."""
    return sum(outcome.cached_tokens for outcome in outcomes)


def all_released(told: dict[str, float]) -> bool:
    """Whether each request that the adapter knows had the three events of its end."""
    events = [told.get(f"vllm:radix_requests{{event={event.value}}}", 0) for event in ENDS]
    return events[0] > 0 and len(set(events)) == 1
