"""`radix replay`: recorded traffic, counted as blocks, as a model's groups, or with real bytes.

Kept here: options that would be ignored are refused, and everything that was typed is checked
before a trace is read. Parts that need the native cache, torch or matplotlib are imported only by
the way of replaying that uses them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from radix.commands.terminal import (
    EXIT_CHECK_FAILED,
    EXIT_DONE,
    Commands,
    check_target,
    complain,
    show,
)
from radix.hints import Hints
from radix.options import OptionError
from radix.policy.limits import WRITE_POLICIES
from radix.replay.chains import Chains, encode_chains
from radix.replay.checkpoints import parse_checkpoints
from radix.replay.hints import THINK, hints_of
from radix.replay.model_files import model_of
from radix.replay.models import PRESETS
from radix.replay.optimal import next_uses
from radix.replay.options import (
    ONLINE_POLICIES,
    OPTIMAL,
    parse_budgets,
    parse_bytes,
    parse_capacities,
    parse_orders,
    parse_policies,
    parse_positive,
    parse_seconds,
    parse_seed,
    parse_share,
    parse_tiers,
)
from radix.replay.progress import Progress, shown_progress
from radix.replay.report import Run, TieredReport, index_report, replay_optimal, write_json
from radix.replay.sessions import Interleave
from radix.replay.stopwatch import Stopwatch
from radix.replay.tenants import weights_of, with_tenants
from radix.replay.traces import DEFAULT_PAGE_TOKENS, Trace, read_trace

if TYPE_CHECKING:
    from rich.console import RenderableType

    from radix.tenants import Tenants

DEFAULT_CAPACITY = "1%,5%,10%,20%,50%"
DEFAULT_BUDGET = "1%,5%,20%"
DEFAULT_CHECKPOINTS = "branch+turn,dense"
DEFAULT_BLOCK_BYTES = 65536
DEFAULT_GAP = "20"

_REPLAY_HELP = """\
Replay recorded traffic and count what a prefix cache would have served.

TRACE is a file of JSON lines, plain, gz or xz, or - for standard input. Three formats are known,
told apart by their content:
  block traces   {"timestamp": 0, "hash_ids": [0, 1, 2]}
                 each id is one block of the prompt
  sessions       {"block_size": 64, "requests": [{"t": 0.0, "in": 9000, "hash_runs": [1, 140]}]}
                 block ids 1 to 140, which mean something in this session alone; a request that has
                 requests itself is an agent, and theirs count their time from its t
  token traces   {"t": 0, "ref": -1, "keep": 0, "add": [5, 6], "out": [7]}
                 prompt = (prompt + out of record ref)[:keep] + add, in pages of --page-tokens
A record may say "tenant": "NAME", a session for all its requests: tenants never hit each other's.
"""
_REPLAY_EXAMPLES = """\
examples:
  radix replay trace.jsonl.gz
  radix replay trace.jsonl.gz --capacity 18279,5% --policy lru --json out.json --plot hits.png
  zcat trace.jsonl.gz | radix replay - --capacity 10% --json -
  radix replay trace.jsonl.gz --tiers device=2000,host=8000,disk=64000 --data ./cache --verify
  radix replay sessions.jsonl.xz --interleave 64 --gap 20 --seed 1 --capacity 10%
  radix replay trace.jsonl.gz --model Qwen3-Next-80B-A3B --budget-bytes 1%,64GiB \\
      --checkpoints branch+turn,dense,every=2048 --json out.json --plot hits.png

exit status: 0 done, 1 a check failed, 2 bad input, 130 interrupted
"""
_MODEL_HELP = """\
Count tokens through all groups of a model (attention, windows, recurrent states) under one budget
of bytes that they share; the oldest block over all groups makes room. Each id of a block trace
stands for --page-tokens tokens (512, or the block_size of sessions). A percentage of --budget-bytes
is of the full footprint: the bytes that the replay with the first policy of --checkpoints holds at
its end when nothing is ever evicted, over all groups (every whole block of prompts and known
outputs, and the windows and states that this policy keeps). All policies get the same bytes.
"""


def add(commands: Commands) -> None:
    """Add `radix replay` and its options."""
    replay = commands.add_parser(
        "replay",
        help="replay recorded traffic and count hits",
        description=_REPLAY_HELP,
        epilog=_REPLAY_EXAMPLES,
    )
    replay.set_defaults(run=run)
    _add_replay_arguments(replay)


def _add_replay_arguments(replay: argparse.ArgumentParser) -> None:
    replay.add_argument("trace", metavar="TRACE", help="the trace, or - for standard input")
    replay.add_argument("--json", metavar="FILE", help="write the result as JSON; - is stdout")
    replay.add_argument(
        "--plot", metavar="FILE", help="draw hits, and with --tiers the time, as a PNG file"
    )
    replay.add_argument(
        "--page-tokens",
        metavar="N",
        help=f"tokens a page, for token traces ({DEFAULT_PAGE_TOKENS}); only full pages count; "
        "with --model also tokens a block, for block traces (what the trace says, or 512)",
    )
    sessions = replay.add_argument_group(
        "whole sessions", "One after another in the order of the file, or several at once."
    )
    sessions.add_argument(
        "--interleave", metavar="N", help="run at most N sessions at once, in a shuffled order"
    )
    sessions.add_argument(
        "--gap",
        metavar="SECONDS",
        help="from one session's start to the next one's on average, exponentially distributed "
        f"({DEFAULT_GAP})",
    )
    sessions.add_argument(
        "--seed", metavar="S", help="decides the order and the starts of sessions (0)"
    )
    index = replay.add_argument_group("counting only (the default)")
    index.add_argument(
        "--capacity",
        metavar="N,N%,...",
        help="cache sizes in blocks, or in %% of the trace's unique blocks "
        f"({DEFAULT_CAPACITY.replace('%', '%%')})",
    )
    index.add_argument(
        "--policy",
        metavar="NAME,...",
        help=f"eviction policies: {', '.join(ONLINE_POLICIES)} (docs/policies.md), {OPTIMAL}, "
        f"which knows the future, or all ({ONLINE_POLICIES[0]},{OPTIMAL}); with --model any but "
        f"{OPTIMAL} ({ONLINE_POLICIES[0]})",
    )
    index.add_argument(
        "--tenants",
        metavar="trace|N",
        help="divide the room among tenants: those that the trace names, or N, among which its "
        "sessions are dealt out by hash; hits are told by tenant",
    )
    index.add_argument("--weights", metavar="NAME=W,...", help="of tenants, 1 of who is not named")
    index.add_argument(
        "--undivided",
        action="store_true",
        help="tenants share no blocks, and one order of eviction decides for all",
    )
    index.add_argument(
        "--hints",
        metavar=THINK,
        help="requests say at their end when the next one of their session comes, or that none "
        "does: for a trace that names sessions",
    )
    index.add_argument(
        "--hint-error",
        metavar="N%",
        help="so many of them say what is true of another request, and all times are off by about "
        "as much (0%%)",
    )
    _add_model_arguments(replay)
    _add_tiered_arguments(replay)


def _add_tiered_arguments(replay: argparse.ArgumentParser) -> None:
    tiered = replay.add_argument_group("with real bytes")
    tiered.add_argument(
        "--tiers",
        metavar="NAME=N,...",
        help="move real blocks through tiers of N blocks: device=2000,host=8000,disk=64000",
    )
    tiered.add_argument(
        "--block-bytes", metavar="N", help=f"bytes of a block ({DEFAULT_BLOCK_BYTES})"
    )
    tiered.add_argument(
        "--data", metavar="DIR", help="keep the disk tier here (a temporary folder)"
    )
    tiered.add_argument(
        "--write",
        metavar="POLICY",
        help=f"when blocks go down: {', '.join(WRITE_POLICIES)} ({WRITE_POLICIES[0]})",
    )
    tiered.add_argument(
        "--write-budget",
        metavar="SIZE",
        help="what the disk may be given to write in a day of the trace, as 2TB",
    )
    tiered.add_argument(
        "--time-unit",
        metavar="UNIT",
        help="of the trace's timestamps, s or ms (ms; sessions have s): what a day is",
    )
    tiered.add_argument(
        "--verify", action="store_true", help="compare every block read back with what was written"
    )


def _add_model_arguments(replay: argparse.ArgumentParser) -> None:
    model = replay.add_argument_group("counting the groups of a model", _MODEL_HELP)
    model.add_argument(
        "--model",
        metavar="NAME|FILE.toml",
        help=f"{', '.join(PRESETS)}, or a file as in docs/model-file.md",
    )
    model.add_argument(
        "--budget-bytes",
        metavar="N%,SIZE,...",
        help="bytes for all groups together: 4GiB, or %% of the full footprint "
        f"({DEFAULT_BUDGET.replace('%', '%%')})",
    )
    model.add_argument(
        "--checkpoints",
        metavar="POLICY,...",
        help="where states and windows are kept: branch+turn, dense (every page), every=N tokens, "
        f"or other sums of these ({DEFAULT_CHECKPOINTS})",
    )
    model.add_argument(
        "--flops",
        metavar="FLOP/S",
        help="what a GPU really reaches, as 4.9e14: counts the seconds that hits save it",
    )
    model.add_argument(
        "--rate",
        metavar="BYTES/S",
        help="hits are read from a tier so fast, as 12GB, where that is faster than computing "
        "(without: they lie on the device)",
    )
    model.add_argument("--latency", metavar="SECONDS", help="what each such read waits before (0)")


def run(options: argparse.Namespace) -> int:
    """Replay as the options say; return the exit status."""
    _check_combination(options)
    for option in ("json", "plot"):
        check_target(f"--{option}", getattr(options, option))
    page_tokens = parse_positive("--page-tokens", options.page_tokens or str(DEFAULT_PAGE_TOKENS))
    if options.tiers is not None:
        return _replay_bytes(options, page_tokens)
    if options.model is not None:
        return _replay_model(options, page_tokens)
    return _replay_index(options, page_tokens)


def _interleave(options: argparse.Namespace) -> Interleave | None:
    """How sessions are interleaved, None where they are not."""
    if options.interleave is None:
        return None
    return Interleave(
        parse_positive("--interleave", options.interleave),
        parse_seconds("--gap", options.gap or DEFAULT_GAP),
        parse_seed(options.seed or "0"),
    )


def _replay_index(options: argparse.Namespace, page_tokens: int) -> int:
    capacities = parse_capacities(options.capacity or DEFAULT_CAPACITY)
    hinted = options.hints is not None
    policies = parse_policies(options.policy or f"{ONLINE_POLICIES[0]},{OPTIMAL}", hinted=hinted)
    if options.hints not in (None, THINK):
        raise OptionError("--hints", f"{options.hints!r} is not {THINK}")
    error = parse_share("--hint-error", options.hint_error or "0%")
    trace = read_trace(options.trace, page_tokens, _interleave(options))
    tenants = None
    if options.tenants is not None:
        trace = with_tenants(trace, options.tenants)
        terms = weights_of(trace, options.weights)
        tenants = None if options.undivided else terms
    hints = hints_of(trace, error) if hinted else None
    if hinted:
        trace = replace(trace, name=f"{trace.name} (hints, {100 * error:g} % wrong)")
    chains = encode_chains(trace)
    blocks = [capacity.blocks(chains.unique_blocks) for capacity in capacities]
    with shown_progress() as progress:
        runs = tuple(_index_runs(trace, chains, policies, blocks, progress, hints, tenants))
    report = index_report(trace, chains, runs)
    if options.plot is not None:
        from radix.replay.plots import plot_hit_ratio_by_capacity

        plot_hit_ratio_by_capacity(report, options.plot)
    from radix.replay.tables import index_table, tenants_table

    show(options.json, index_table(report))
    if (by_tenant := tenants_table(report)) is not None:
        show(options.json, by_tenant)
    if options.json is not None:
        write_json(options.json, report.as_json())
    return EXIT_DONE


def _index_runs(
    trace: Trace,
    chains: Chains,
    policies: Sequence[str],
    capacities: Sequence[int],
    progress: Progress,
    hints: Sequence[Hints] | None,
    tenants: Tenants | None,
) -> Iterator[Run]:
    """Run each policy at each capacity; what all runs of the optimum share is computed once."""
    following = next_uses(chains) if OPTIMAL in policies else None
    for policy in policies:
        for capacity in capacities:
            progress.phase(f"{policy}, {capacity:,} blocks", len(trace))
            if following is not None and policy == OPTIMAL:
                yield replay_optimal(trace, chains, following, capacity)
                continue
            from radix.replay.index import replay_index

            yield replay_index(trace, chains, capacity, policy, progress, hints, tenants)


def _replay_model(options: argparse.Namespace, page_tokens: int) -> int:
    from radix.replay.grouped import BLOCK_TOKENS, model_report
    from radix.replay.saving import parse_terms

    model = model_of(options.model)
    terms = parse_terms(model, options.flops, options.rate, options.latency)
    budgets = parse_budgets(options.budget_bytes or DEFAULT_BUDGET)
    policies = parse_checkpoints(options.checkpoints or DEFAULT_CHECKPOINTS)
    orders = parse_orders(options.policy or ONLINE_POLICIES[0])
    trace = read_trace(options.trace, page_tokens, _interleave(options))
    block_tokens = trace.block_tokens or BLOCK_TOKENS
    if options.page_tokens is not None:
        block_tokens = page_tokens
    with shown_progress() as progress:
        report = model_report(
            trace, model, block_tokens, budgets, policies, progress, terms, orders
        )
    if options.plot is not None:
        from radix.replay.plots import plot_hit_tokens_by_budget

        plot_hit_tokens_by_budget(report, options.plot)
    from radix.replay.tables import model_table, savings_table

    show(options.json, model_table(report))
    if (saved := savings_table(report)) is not None:
        show(options.json, saved)
    if options.json is not None:
        write_json(options.json, report.as_json())
    return EXIT_DONE


def _replay_bytes(options: argparse.Namespace, page_tokens: int) -> int:
    sizes = parse_tiers(options.tiers)
    block_bytes = parse_positive("--block-bytes", options.block_bytes or str(DEFAULT_BLOCK_BYTES))
    if options.data is not None and not sizes.disk:
        raise OptionError("--data", "there is no disk tier in --tiers to keep there")
    write = options.write or WRITE_POLICIES[0]
    if write not in WRITE_POLICIES:
        raise OptionError("--write", f"{write!r} is not one of {', '.join(WRITE_POLICIES)}")
    if options.time_unit not in (None, "s", "ms"):
        raise OptionError("--time-unit", f"{options.time_unit!r} is neither s nor ms")
    budget = None
    if options.write_budget is not None:
        budget = parse_bytes("--write-budget", options.write_budget)
    stopwatch = Stopwatch()
    with stopwatch.measure("parse"):
        trace = read_trace(options.trace, page_tokens, _interleave(options))
    from radix.replay.bytes import replay_bytes

    unit_s = {"s": 1.0, "ms": 1e-3}[options.time_unit or ("s" if trace.block_tokens else "ms")]
    data, verify = Path(options.data) if options.data is not None else None, options.verify
    with shown_progress() as progress:
        report, history = replay_bytes(
            *(trace, sizes, block_bytes, data, verify, progress, stopwatch), write, budget, unit_s
        )
    if options.plot is not None:
        from radix.replay.plots import plot_tiered_replay

        plot_tiered_replay(report, history, options.plot)
    return finish(report, options.json)


def finish(report: TieredReport, json_target: str | None) -> int:
    """Show a report with bytes and turn its checks into an exit status."""
    from radix.replay.tables import checks_table, stages_table, tiered_table

    shown: list[RenderableType] = [tiered_table(report)]
    if report.stages:
        shown.append(stages_table(report))
    show(json_target, *shown, checks_table(report.checks))
    if json_target is not None:
        write_json(json_target, report.as_json())
    for check in report.checks:
        if not check.passed:
            complain(f"check failed: {check.name}: {check.found}", EXIT_CHECK_FAILED)
    return EXIT_DONE if report.passed else EXIT_CHECK_FAILED


def _check_combination(options: argparse.Namespace) -> None:
    """Refuse options that would be ignored, rather than ignoring them."""
    ordering = {"--policy": options.policy}
    counting = {
        "--capacity": options.capacity,
        "--hints": options.hints,
        "--tenants": options.tenants,
    }
    divided = {"--weights": options.weights, "--undivided": options.undivided or None}
    tiered = {
        "--block-bytes": options.block_bytes,
        "--data": options.data,
        "--verify": options.verify or None,
        "--write": options.write,
        "--write-budget": options.write_budget,
        "--time-unit": options.time_unit,
    }
    names = ("budget_bytes", "checkpoints", "flops", "rate", "latency")
    modelled = {f"--{name.replace('_', '-')}": getattr(options, name) for name in names}
    excluded = []
    if options.interleave is None:
        excluded.append(({"--gap": options.gap, "--seed": options.seed}, "needs --interleave"))
    if options.hints is None:
        excluded.append(({"--hint-error": options.hint_error}, "needs --hints"))
    if options.tiers is None:
        excluded.append((tiered, "needs --tiers"))
    else:
        refused = counting | ordering | {"--model": options.model}
        excluded.append((refused, "cannot go with --tiers"))
    if options.tenants is None:
        excluded.append((divided, "needs --tenants"))
    elif options.undivided:
        excluded.append(({"--weights": options.weights}, "cannot go with --undivided"))
    if options.model is None:
        excluded.append((modelled, "needs --model"))
    else:
        excluded.append((counting, "cannot go with --model"))
    for given, why in excluded:
        for option, value in given.items():
            if value is not None:
                raise OptionError(option, why)
