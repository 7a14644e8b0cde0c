"""Draw what a replay or the demo found: hit ratio, occupancy and bytes moved, as PNG files.

The only module that needs matplotlib. It draws through the file backend alone, so that no display
is needed and nothing global changes. Kept here: every axis is labelled with its unit, a colour
means the same tier in every figure, and figures are drawn from counted values only.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import (
    EngFormatter,
    FuncFormatter,
    MaxNLocator,
    MultipleLocator,
    NullFormatter,
    NullLocator,
    PercentFormatter,
)

from radix.options import size_text
from radix.replay.history import History
from radix.replay.options import OPTIMAL
from radix.replay.output import draft_of
from radix.replay.report import IndexReport, ModelReport, TieredReport
from radix.replay.stopwatch import BOOKS, BYTES, REPLAY, TREE

TIER_COLOURS = {"device": "#1b6ca8", "host": "#e08e1a", "disk": "#5a8f29"}
# Of each policy its colour, marker and width: what others are measured against stands out.
POLICY_STYLES = {
    "lru": ("#1b6ca8", "o", 2.6),
    "fifo": ("#9db7cc", "v", 1.2),
    "lfu": ("#8a8d00", "^", 1.2),
    "slru": ("#a0522d", "s", 1.2),
    "s3fifo": ("#0f8b8d", "D", 1.2),
    "arc": ("#b03a8c", "P", 1.2),
    "priority": ("#708090", "<", 1.2),
    "cost": ("#5a8f29", "X", 1.2),
    "hit_density": ("#e0671a", "o", 2.0),
    "optimal": ("#111111", "*", 2.0),
}
CHECKPOINT_COLOURS = {"branch+turn": "#1b6ca8", "dense": "#c0392b"}
PART_COLOURS = {TREE: "#c0392b", BOOKS: "#e08e1a", BYTES: "#1b6ca8", REPLAY: "#a0a0a0"}
_OTHERS = ("#6c4fa3", "#0f8b8d", "#a0522d", "#708090", "#b03a8c", "#8a8d00")
_WINDOWS = 48


def plot_hit_ratio_by_capacity(report: IndexReport, path: str | Path) -> None:
    """Draw the share of blocks hit against capacity, a curve for each policy. Cost: about 0.2 s.

    Raises:
        OSError: the file cannot be written.
    """
    figure, axes = _figure(f"Hit ratio by capacity: {Path(report.trace).name}")
    draw_hit_ratio_by_capacity(axes, report)
    _save(figure, axes, path)


def draw_hit_ratio_by_capacity(axes: Axes, report: IndexReport) -> None:
    """Draw the curves of all policies into axes; the optimum is dashed. Cost: the runs."""
    ceiling = _ratio(report.blocks - report.unique_blocks, report.blocks)
    axes.axhline(ceiling, color="#999999", linestyle=":", label="unlimited capacity")
    for number, policy in enumerate(dict.fromkeys(run.policy for run in report.runs)):
        runs = sorted(
            (run for run in report.runs if run.policy == policy),
            key=lambda run: run.capacity_blocks,
        )
        other = (_OTHERS[number % len(_OTHERS)], "o", 1.2)
        colour, marker, width = POLICY_STYLES.get(policy, other)
        axes.plot(
            [run.capacity_blocks for run in runs],
            [_ratio(run.hit_blocks, run.total_blocks) for run in runs],
            color=colour,
            linestyle="--" if policy == OPTIMAL else "-",
            linewidth=width,
            marker=marker,
            markersize=9 if marker == "*" else 5,
            label=policy,
        )
    capacities = sorted({run.capacity_blocks for run in report.runs})
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(capacities, [f"{capacity:,}" for capacity in capacities], rotation=20)
    axes.set_xlabel("capacity (blocks, logarithmic)")
    axes.set_ylabel("blocks hit (% of all blocks)")
    _percent_axis(axes)
    shares = [ceiling, *(_ratio(run.hit_blocks, run.total_blocks) for run in report.runs)]
    axes.set_ylim(0, min(100.0, 10.0 * math.ceil(1.04 * max(1.0, *shares) / 10)))
    axes.yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))


def plot_hit_tokens_by_budget(report: ModelReport, path: str | Path) -> None:
    """Draw the tokens hit against the budget, a curve for each checkpoint policy.

    Cost: about 0.2 s.

    Raises:
        OSError: the file cannot be written.
    """
    figure, axes = _figure(f"Tokens hit by budget: {report.model}, {Path(report.trace).name}")
    axes.axhline(
        report.footprint_hit_tokens,
        color="#999999",
        linestyle=":",
        label=f"unlimited, {report.footprint_checkpoints}",
    )
    for number, policy in enumerate(dict.fromkeys(run.checkpoints for run in report.runs)):
        runs = sorted(
            (run for run in report.runs if run.checkpoints == policy),
            key=lambda run: run.budget_bytes,
        )
        axes.plot(
            [run.budget_bytes for run in runs],
            [run.hit_tokens for run in runs],
            marker="o",
            color=_colour(CHECKPOINT_COLOURS, policy, number),
            label=policy,
        )
    budgets = sorted({run.budget_bytes for run in report.runs})
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(budgets, [_bytes(budget, 0) for budget in budgets], rotation=20)
    axes.set_xlabel("budget of all groups (bytes, logarithmic)")
    axes.set_ylabel("tokens hit")
    axes.set_ylim(
        0, 1.05 * max(1, report.footprint_hit_tokens, *(r.hit_tokens for r in report.runs))
    )
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    _save(figure, axes, path)


def plot_hit_ratio_over_time(history: History, path: str | Path) -> None:
    """Draw the share of prompt tokens that each tier served, stacked, over time. Cost: about 0.2 s.

    Raises:
        OSError: the file cannot be written.
    """
    figure, axes = _figure("Prompt tokens served from the cache, by tier")
    _draw_hit_ratio(axes, history)
    _save(figure, axes, path)


def plot_tiered_replay(report: TieredReport, history: History, path: str | Path) -> None:
    """Draw what each tier served over time, what was moved and written meanwhile and, below, where
    the time went, a bar a stage.

    Cost: about 0.3 s.

    Raises:
        OSError: the file cannot be written.
    """
    figure, (above, middle, below) = _figures(
        "Prompt tokens served from the cache, by tier",
        "Bytes moved between tiers, and written",
        f"Share of {report.seconds:.4g} s by stage",
    )
    _draw_hit_ratio(above, history)
    _draw_bytes_moved(middle, history)
    middle.legend(frameon=False, fontsize=7)
    places = list(range(len(report.stages)))
    for part in report.parts:
        mine = [place for place in places if report.stages[place].part == part]
        shares = [100 * report.stages[place].seconds / report.seconds for place in mine]
        bars = below.barh(
            mine,
            shares,
            color=PART_COLOURS[part],
            label=f"{part} ({100 * report.parts[part]:.1f} %)",
        )
        below.bar_label(bars, [f"{share:.1f} %" for share in shares], padding=3, fontsize=7)
    below.set_yticks(places, [stage.name for stage in report.stages], fontsize=8)
    below.invert_yaxis()
    below.set_xlabel("time of the replay (%)")
    below.set_ylabel("stage")
    _save(figure, above, path)


def _draw_hit_ratio(axes: Axes, history: History) -> None:
    for number, edges in enumerate(_windows(history)):
        _draw_shares(axes, history, edges, labelled=number == 0)
    axes.set_xlabel("time (s)")
    axes.set_ylabel("prompt tokens served (% of tokens in the window)")
    _percent_axis(axes)
    _marks(axes, history)


def plot_occupancy(history: History, path: str | Path) -> None:
    """Draw the bytes that each tier holds over time, with its capacity. Cost: about 0.2 s.

    Raises:
        OSError: the file cannot be written.
    """
    figure, axes = _figure("Occupancy by tier")
    seconds = [sample.seconds for sample in history.samples]
    for number, (tier, capacity) in enumerate(history.capacity_bytes.items()):
        used = [sample.used_bytes[tier] for sample in history.samples]
        colour = _colour(TIER_COLOURS, tier, number)
        axes.plot(seconds, used, color=colour, label=f"{tier} (holds {_bytes(capacity, 0)})")
        axes.axhline(capacity, color=colour, linestyle=":", linewidth=1)
    axes.set_xlabel("time (s)")
    axes.set_ylabel("bytes held (dotted: capacity)")
    _bytes_axis(axes)
    _marks(axes, history)
    _save(figure, axes, path)


def plot_bytes_moved(history: History, path: str | Path) -> None:
    """Draw the bytes moved so far in each direction over time. Cost: about 0.2 s.

    Raises:
        OSError: the file cannot be written.
    """
    figure, axes = _figure("Bytes moved between tiers, and written")
    _draw_bytes_moved(axes, history)
    _save(figure, axes, path)


def _draw_bytes_moved(axes: Axes, history: History) -> None:
    seconds = [sample.seconds for sample in history.samples]
    directions = history.samples[-1].moved_bytes if history.samples else {}
    for number, direction in enumerate(directions):
        moved = [sample.moved_bytes.get(direction, 0) for sample in history.samples]
        label = f"{direction} ({_bytes(moved[-1], 0)})"
        axes.plot(seconds, moved, color=_OTHERS[number % len(_OTHERS)], label=label)
    for number, tier in enumerate(history.samples[-1].written_bytes if history.samples else {}):
        written = [sample.written_bytes.get(tier, 0) for sample in history.samples]
        label = f"written to {tier} ({_bytes(written[-1], 0)})"
        colour = _colour(TIER_COLOURS, tier, number)
        axes.plot(seconds, written, color=colour, linestyle="--", label=label)
    axes.set_xlabel("time (s)")
    axes.set_ylabel("bytes since the start")
    _bytes_axis(axes)
    _marks(axes, history)


def _figure(title: str) -> tuple[Figure, Axes]:
    figure, (axes,) = _figures(title)
    return figure, axes


def _figures(*titles: str) -> tuple[Figure, list[Axes]]:
    """A figure with axes for each title, one above the other."""
    figure = Figure(figsize=(8.0, 4.6 * len(titles)), dpi=140, layout="constrained")
    FigureCanvasAgg(figure)
    every = [figure.add_subplot(len(titles), 1, n) for n in range(1, len(titles) + 1)]
    for axes, title in zip(every, titles, strict=True):
        axes.set_title(title, loc="left", fontweight="bold")
        axes.grid(True, color="#e3e3e3", linewidth=0.8)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure, every


def _save(figure: Figure, axes: Axes, path: str | Path) -> None:
    labels = axes.get_legend_handles_labels()[1]
    if labels:
        columns = 4 if sum(map(len, labels)) < 80 else 2
        figure.legend(loc="outside lower center", ncols=columns, frameon=False)
    with draft_of(path) as draft:
        figure.savefig(draft, format="png")


def _colour(known: dict[str, str], name: str, number: int) -> str:
    return known.get(name, _OTHERS[number % len(_OTHERS)])


def _ratio(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def _windows(history: History) -> list[list[int]]:
    """Choose the samples that bound the windows of a ratio, a list for each stretch between marks:
    no window reaches over a mark, and in each some prompt came.
    """
    samples = history.samples
    if not samples:
        return []
    times = [sample.seconds for sample in samples]
    cuts = [0, *sorted(bisect_left(times, seconds) for seconds, _ in history.marks), len(samples)]
    stretches = []
    for first, end in pairwise(cuts):
        count = min(end - first, 1 + max(1, _WINDOWS * (end - first) // len(samples)))
        edges: list[int] = []
        for place in np.linspace(first, end - 1, count).astype(np.int64).tolist():
            if not edges or samples[place].prompt_tokens > samples[edges[-1]].prompt_tokens:
                edges.append(place)
        if len(edges) > 1:
            stretches.append(edges)
    return stretches


def _draw_shares(axes: Axes, history: History, edges: Sequence[int], *, labelled: bool) -> None:
    """Stack the shares of the tiers; that of a window holds over all of it, up to its edge."""
    samples = [history.samples[edge] for edge in edges]
    seconds = [sample.seconds for sample in samples]
    tokens = np.diff([sample.prompt_tokens for sample in samples])
    lower = np.zeros(len(samples))
    for number, tier in enumerate(history.capacity_bytes):
        shares = 100 * np.diff([sample.hit_tokens[tier] for sample in samples]) / tokens
        upper = lower + np.concatenate((shares[:1], shares))
        axes.fill_between(
            seconds,
            lower,
            upper,
            step="pre",
            color=_colour(TIER_COLOURS, tier, number),
            alpha=0.75,
            linewidth=0,
            label=tier if labelled else None,
        )
        lower = upper
    label = "all tiers" if labelled else None
    axes.step(seconds, lower, where="pre", color="#222222", linewidth=1.2, label=label)


def _marks(axes: Axes, history: History) -> None:
    for seconds, label in history.marks:
        axes.axvline(seconds, color="#555555", linestyle="--", linewidth=1)
        axes.annotate(
            label,
            (seconds, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(4, -4),
            textcoords="offset points",
            va="top",
            fontsize=9,
            color="#555555",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
        )


def _percent_axis(axes: Axes) -> None:
    axes.set_ylim(0, 100)
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))


def _bytes_axis(axes: Axes) -> None:
    top = max(axes.get_ylim()[1] * 1.08, 1.0)
    axes.set_ylim(0, top)
    # Steps are powers of two, which is what sizes in KiB and MiB are read in.
    axes.yaxis.set_major_locator(MultipleLocator(2 ** math.ceil(math.log2(top / 6))))
    axes.yaxis.set_major_formatter(FuncFormatter(_bytes))


def _bytes(value: float, _: object) -> str:
    """Print a number of bytes with a binary unit."""
    return size_text(value)
