"""What writing less to a disk costs in hits: policies of writing over the same traffic.

    python -m bench.writes TRACES     the table of docs/writes.md, over real traces

Kept here: what is counted are hits and blocks that go down, of a memory and a lasting tier below it
that have slots and no bytes; each policy sees the same requests in the same order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from bench.ending import ended
from bench.measure import OURS, Benchmark, Outcome, Place, Rounds, Sizes
from radix.cache import PrefixCache
from radix.commands.terminal import Parser
from radix.errors import CapacityError
from radix.groups import Group
from radix.keys import Tokens
from radix.policy.limits import Limits
from radix.replay.chains import encode_chains
from radix.replay.traces import read_trace
from radix.tier import Capability
from tiers.index import IndexTier

KINDS: Mapping[str, tuple[str, Limits]] = {
    "write_through": ("write_through", Limits()),
    "write_after 1": ("write_after", Limits(write_after=1)),
    "write_expected 0.1": ("write_expected", Limits(write_expected=0.1)),
    "write_expected 0.2": ("write_expected", Limits(write_expected=0.2)),
}
TRACES = (
    "oasst_en100_tok.jsonl.gz",
    "tau_airline_tok.jsonl.gz",
    "ragpulse.jsonl.gz",
    "mooncake_conversation.jsonl.gz",
    "claude_code_mix64.jsonl.gz",
)
MEMORY = 0.02  # of the different blocks of a trace
DISKS = (0.1, 0.3)


class LastingIndex(IndexTier):
    """Slots without bytes that the cache takes for a disk's."""

    @property
    def capability(self) -> Capability:
        """As a disk's in what decides about writes."""
        return replace(super().capability, persistent=True)


@dataclass(frozen=True, slots=True)
class Found:
    """Of one run: pages asked for, hit, and hit below; blocks written there."""

    asked: int
    hits: int
    below: int
    written: int


def count(prompts: Iterable[Tokens], page_tokens: int, memory: int, disk: int, kind: str) -> Found:
    """Serves prompts, one after the other, with memory and disk of so many blocks."""
    write, limits = KINDS[kind]
    tiers = [IndexTier(memory), LastingIndex(disk, "disk")]
    asked = 0
    with PrefixCache(
        [Group.full("kv", 1)], tiers, page_tokens=page_tokens, write=write, limits=limits
    ) as cache:
        for prompt in prompts:
            prompt = prompt[: memory * page_tokens]
            asked += len(prompt) // page_tokens
            if len(prompt) < page_tokens:
                continue
            try:
                request = cache.admit(prompt)
            except CapacityError:  # copies pin what they read until the next poll
                cache.poll()
                request = cache.admit(prompt)
            while not request.ready:
                cache.poll()
            request.computed(len(prompt))
            request.finish()
            cache.poll()
            cache.poll()
        metrics = cache.metrics
        hits = [metrics.get("match", "hit_tokens", tier.name) // page_tokens for tier in tiers]
        return Found(asked, sum(hits), hits[1], metrics.get("store", "blocks", "disk", "kv"))


def conversations(turns: int, seed: int) -> Iterator[Tokens]:
    """Chats that go on a few times, among prompts that nobody asks for again."""
    rng = np.random.default_rng(seed)
    open_chats: list[np.ndarray] = []
    for turn in range(turns):
        if turn % 2:
            yield rng.integers(0, 1 << 30, 16 * 12, dtype=np.int32)  # a scan
            continue
        if len(open_chats) < 12 or rng.random() < 0.15:
            open_chats.append(rng.integers(0, 1 << 30, 16 * 4, dtype=np.int32))
        chat = int(rng.integers(len(open_chats)))
        more = rng.integers(0, 1 << 30, 16 * 2, dtype=np.int32)
        open_chats[chat] = np.concatenate((open_chats[chat], more))
        yield open_chats[chat]
        if len(open_chats[chat]) > 16 * 20:
            del open_chats[chat]


def run_writes(sizes: Sizes, place: Place) -> Outcome:
    """Every policy over the same generated traffic."""
    rounds, facts = Rounds(), {}
    for kind in KINDS:
        found = count(conversations(sizes["turns"], 7), 16, sizes["memory"], sizes["disk"], kind)
        facts[f"blocks written, {kind}"] = found.written
        facts[f"pages hit, {kind}"] = found.hits
        rounds.add(f"written of asked, {kind}", OURS, "%", 100 * found.written / found.asked)
        rounds.add(f"hit of asked, {kind}", OURS, "%", 100 * found.hits / found.asked)
    return Outcome(rows=rounds.rows(), facts=facts)


BENCHMARKS = (
    Benchmark(
        "write-policies",
        "What policies of writing hit, and what they write",
        run_writes,
        smoke={"turns": 400, "memory": 64, "disk": 512},
        full={"turns": 20_000, "memory": 64, "disk": 2048},
        tags=("by name",),
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table over real traces. Returns the exit status (see ``ending``)."""
    parser = Parser(prog="python -m bench.writes", description="What policies of writing hit.")
    parser.add_argument("traces", type=Path, help="the folder of the traces")
    return ended("bench.writes", partial(_table, parser.parse_args(arguments).traces))


def _table(folder: Path) -> int:
    print("| trace | disk | policy | hits | of them below | written of asked | against all |")
    print("|---|---:|---|---:|---:|---:|---:|")
    for name in TRACES:
        trace = read_trace(str(folder / name))
        unique = encode_chains(trace).unique_blocks
        for share in DISKS:
            whole = 0
            for kind in KINDS:
                memory, disk = max(64, int(unique * MEMORY)), max(64, int(unique * share))
                found = count(trace.prompts(), trace.page_tokens, memory, disk, kind)
                whole = whole or found.written
                print(
                    f"| {name.split('.')[0]} | {share:.0%} | `{kind}` "
                    f"| {100 * found.hits / found.asked:.1f} % "
                    f"| {100 * found.below / found.asked:.1f} % "
                    f"| {100 * found.written / found.asked:.1f} % "
                    f"| {100 * (found.written / whole - 1):+.0f} % |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
