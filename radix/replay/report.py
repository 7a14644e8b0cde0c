"""What a replay found, as values and as JSON.

Kept here: the JSON of an index-only replay has exactly the fields that its schema version names;
counts are blocks of the trace, so that hits, usable hits and totals of all policies can be
compared.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from radix.replay.chains import Chains
from radix.replay.optimal import optimal_hits
from radix.replay.options import OPTIMAL
from radix.replay.output import draft_of
from radix.replay.saving import Saving
from radix.replay.stopwatch import StageTime
from radix.replay.traces import Int64Array, Trace, Unit

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class TenantHits:
    """What the requests of one tenant asked for and hit, as in its `Run`; blocks that it had at the
    end, 0 for the optimum, which divides nothing.
    """

    requests: int
    hit_blocks: int
    total_blocks: int
    resident_blocks: int


def hits_by_tenant(
    trace: Trace, chains: Chains, hits: Int64Array, resident: Mapping[str, int]
) -> dict[str, TenantHits]:
    """Divide the hits of each request among tenants, by name; nothing where they are not told
    apart. Cost: the requests.
    """
    counts: dict[str, list[int]] = {}
    if not trace.tenants:
        return {}
    blocks = np.diff(chains.offsets).tolist()
    for tenant, hit, asked in zip(trace.tenants, hits.tolist(), blocks, strict=True):
        of = counts.setdefault(tenant, [0, 0, 0])
        of[0], of[1], of[2] = of[0] + 1, of[1] + hit, of[2] + asked
    return {
        name: TenantHits(requests, hit, asked, resident.get(name, 0))
        for name, (requests, hit, asked) in sorted(counts.items())
    }


@dataclass(frozen=True, slots=True)
class Run:
    """One policy at one capacity over a whole trace.

    `hit_blocks` is the structural hit; `usable_hit_blocks` leaves one token of each prompt to
    compute. `tenants`: by name, where the replay tells them apart.
    """

    policy: str
    capacity_blocks: int
    hit_blocks: int
    usable_hit_blocks: int
    total_blocks: int
    seconds: float
    tenants: Mapping[str, TenantHits]


@dataclass(frozen=True, slots=True)
class IndexReport:
    """An index-only replay: what the trace holds, and one `Run` for each policy and capacity."""

    trace: str
    requests: int
    blocks: int
    unique_blocks: int
    runs: tuple[Run, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values. Cost: O(runs)."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self), "runs": [*map(asdict, self.runs)]}


def index_report(trace: Trace, chains: Chains, runs: tuple[Run, ...]) -> IndexReport:
    """Put runs and the facts of their trace together. Cost: O(1)."""
    return IndexReport(trace.name, len(trace), chains.blocks, chains.unique_blocks, runs)


def replay_optimal(
    trace: Trace, chains: Chains, following: Int64Array, capacity_blocks: int
) -> Run:
    """Run the clairvoyant optimum over a trace; see `radix.replay.optimal`.

    Args:
        trace: whose tenants the hits are divided among.
        chains: the trace's blocks.
        following: what `next_uses` returned for them.
        capacity_blocks: size of the cache in blocks, at least 1.

    Raises:
        ValueError: `capacity_blocks` is below 1.
    """
    began = time.perf_counter()
    hits = optimal_hits(chains, following, capacity_blocks)
    return Run(
        policy=OPTIMAL,
        capacity_blocks=capacity_blocks,
        hit_blocks=int(hits.sum()),
        usable_hit_blocks=int(hits.clip(max=chains.usable_blocks).sum()),
        total_blocks=chains.blocks,
        seconds=time.perf_counter() - began,
        tenants=hits_by_tenant(trace, chains, hits, {}),
    )


@dataclass(frozen=True, slots=True)
class ModelRun(Run):
    """One policy of checkpoints under one budget of bytes, over a whole trace and all groups.

    Hits are joint hits: prefixes that every group of the model can serve. `capacity_blocks` is how
    many blocks the budget would hold of the groups that keep all tokens, alone; `hit_tokens` are
    the tokens of the usable hits, `known_tokens` those of the longest prefixes that the tree knew,
    whether or not the windows and states for a hit there were kept. `state_bytes` are the snapshots
    resident at the end, `state_bytes_peak` the most after any request, `resident_bytes` all blocks
    at the end by group, `evicted_blocks` those that made room, by group. `saving`: what the hits
    are worth in seconds, where that was asked.
    """

    model: str
    checkpoints: str
    budget_bytes: int
    hit_tokens: int
    known_tokens: int
    state_bytes: int
    state_bytes_peak: int
    resident_bytes: Mapping[str, int]
    evicted_blocks: Mapping[str, int]
    saving: Saving | None = None


@dataclass(frozen=True, slots=True)
class ModelReport:
    """A replay of a model's groups: the trace, and a `ModelRun` for each policy and budget.

    `footprint_bytes` is what percentages are of: what the replay with the policy
    `footprint_checkpoints` holds at its end when nothing is evicted; it then hits
    `footprint_hit_tokens`. `odd_lengths` counts requests whose length does not fit their blocks:
    all of these count as full.
    """

    trace: str
    requests: int
    blocks: int
    unique_blocks: int
    model: str
    page_tokens: int
    prompt_tokens: int
    odd_lengths: int
    footprint_bytes: int
    footprint_checkpoints: str
    footprint_hit_tokens: int
    runs: tuple[ModelRun, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values. Cost: O(runs)."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self), "runs": [*map(asdict, self.runs)]}


def write_json(target: str, values: dict[str, Any]) -> None:
    """Write values as indented JSON to a file, or to standard output where `target` is "-".

    A file appears whole or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    text = json.dumps(values, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
        return
    with draft_of(target) as draft:
        draft.write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class TieredRun:
    """One pass of requests through a cache over several tiers, with real bytes.

    Counts by tier, direction and reason are in the order in which they should be shown. What is
    called tokens here are entries of the prompts: blocks, where `unit` is "block".
    `hit_tokens` are prompt tokens that were not computed again, by the tier that served them;
    `missed_tokens` the others, by reason. `loaded_blocks` came up from a lower tier to the device,
    and `verified_blocks` are those of them that were then compared there with what had been
    written. `declined_blocks` found no room in the tier below, `corrupt_blocks` were read and
    found damaged (a miss each), `restored_blocks` lay on the disk when it was opened.

    Of tiers that wear: `stored_bytes` of blocks went there, for which they were given
    `written_bytes` to write, by what it was (payload with its padding, index, room made ahead);
    `over_budget_blocks` were not stored because the budget of a day was used up. `spanned_s` is
    how long the requests took by the trace's own time, where it has one.
    """

    label: str
    unit: Unit
    requests: int
    prompt_tokens: int
    hit_tokens: Mapping[str, int]
    missed_tokens: Mapping[str, int]
    moved_bytes: Mapping[str, int]
    evicted_blocks: Mapping[str, int]
    declined_blocks: Mapping[str, int]
    corrupt_blocks: Mapping[str, int]
    restored_blocks: int
    loaded_blocks: int
    verified_blocks: int
    seconds: float
    stored_bytes: Mapping[str, int]
    written_bytes: Mapping[str, Mapping[str, int]]
    over_budget_blocks: Mapping[str, int]
    spanned_s: float

    @property
    def write_amplification(self) -> dict[str, float]:
        """By tier the bytes written for each that was stored, where any was. Cost: O(tiers)."""
        return {
            tier: sum(self.written_bytes[tier].values()) / stored
            for tier, stored in self.stored_bytes.items()
            if stored
        }

    @property
    def written_bytes_a_day(self) -> dict[str, float]:
        """By tier the bytes written in a day like the replayed time. Cost: O(tiers)."""
        days = self.spanned_s / 86_400
        return {
            tier: sum(written.values()) / days
            for tier, written in self.written_bytes.items()
            if days > 0
        }

    @property
    def saved_tokens(self) -> int:
        """Prompt tokens that no tier left to compute. Cost: O(tiers)."""
        return sum(self.hit_tokens.values())

    def as_json(self) -> dict[str, Any]:
        """Return the run as plain JSON values. Cost: O(fields)."""
        return {
            **asdict(self),
            "saved_tokens": self.saved_tokens,
            "write_amplification": self.write_amplification,
            "written_bytes_a_day": self.written_bytes_a_day,
        }


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must be true of a run, and what was found."""

    name: str
    passed: bool
    found: str


@dataclass(frozen=True, slots=True)
class TieredReport:
    """Everything that a replay with bytes, or the demo, found.

    `settings` says how it was run; a run that did not verify has no check about verification.
    `stages` says where the time went, all of it, from reading the trace until the tiers were
    closed; the demo, whose timeline shows more, has none.
    """

    source: str
    settings: Mapping[str, int | str]
    runs: tuple[TieredRun, ...]
    checks: tuple[Check, ...]
    stages: tuple[StageTime, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed. Cost: O(checks)."""
        return all(check.passed for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values. Cost: O(runs + checks)."""
        return {
            "schema_version": SCHEMA_VERSION,
            "source": self.source,
            "settings": dict(self.settings),
            "passed": self.passed,
            "checks": [*map(asdict, self.checks)],
            "runs": [run.as_json() for run in self.runs],
            "stages": [
                {**asdict(stage), "share": stage.seconds / self.seconds} for stage in self.stages
            ],
            "parts": self.parts,
        }

    @property
    def seconds(self) -> float:
        """The time of all stages. Cost: O(stages)."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def parts(self) -> dict[str, float]:
        """Shares of the time by part, which add up to 1; empty without stages. Cost: O(stages)."""
        shares = dict.fromkeys((stage.part for stage in self.stages), 0.0)
        for stage in self.stages:
            shares[stage.part] += stage.seconds / self.seconds
        return shares
