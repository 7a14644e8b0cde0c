"""Draws kept results: ``python -m bench plot REPORT.json FIGURE.png``.

The only module here that needs matplotlib, through its file backend. Kept here: a figure shows
medians with the spread of their rounds, each beside what it was measured against, and nothing that
is not in the report.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.ending import ended, written_to
from bench.report import read_report
from radix.commands.terminal import check_target
from radix.options import OptionError
from radix.replay.output import draft_of

COLOURS = {
    "radix": "#1b6ca8",
    "limit": "#999999",
    "plain": "#c9c9c9",
    "lmdb": "#e08e1a",
    "fio": "#d9b44a",
    "sglang-rust": "#a83232",
    "sglang-python": "#c96a6a",
    "sglang-radix": "#e0a3a3",
    "vllm": "#3f8f4f",
    "dynamo": "#7a9a01",
    "lmcache": "#8a5a2b",
}
_OTHER = "#6c4fa3"
_COLUMNS = 2
_LEAST_INCHES, _INCHES_A_ROW = 3.2, 0.17
_AT_A_SIZE = re.compile(r"(.+), of (\d[\d,]*) (\w+)")


def plot_report(report: dict[str, Any], path: str | Path) -> None:
    """Draws a panel for each unit of each benchmark, whole or not at all. Raises ``OSError``,
    ``OptionError`` for a report without rows.
    """
    panels = [
        (block, unit, [row for row in block["rows"] if row["unit"] == unit])
        for block in report["benchmarks"]
        if "rows" in block
        for unit in dict.fromkeys(row["unit"] for row in block["rows"])
    ]
    if not panels:
        raise OptionError("report", "it holds no rows")
    longest = [
        max(len(rows) for _, _, rows in panels[first : first + _COLUMNS])
        for first in range(0, len(panels), _COLUMNS)
    ]
    heights = [max(_LEAST_INCHES, 1.0 + _INCHES_A_ROW * rows) for rows in longest]
    rcParams["text.parse_math"] = False  # names are shown as they are
    figure = Figure(figsize=(14, sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(heights), _COLUMNS, height_ratios=heights)
    machine = report["machine"]
    size = "smoke sizes" if report["smoke"] else "full sizes"
    figure.suptitle(f"{machine['cpu']}, {machine['cores']} cores, {size}", fontsize=11)
    for number, (block, unit, rows) in enumerate(panels):
        axes = figure.add_subplot(grid[number // _COLUMNS, number % _COLUMNS])
        if all(_AT_A_SIZE.fullmatch(row["name"]) for row in rows):
            _draw_against_size(axes, block, unit, rows)
            continue
        _draw(axes, block, unit, rows)
        if "columns" in block:  # ours and a peer's may lie a hundred times apart
            axes.set_xscale("log")
    with draft_of(path) as draft:
        figure.savefig(draft, dpi=110, format="png")


def _draw(axes: Axes, block: dict[str, Any], unit: str, rows: Sequence[dict[str, Any]]) -> None:
    """One bar a row, from the top; whiskers from the least sample to the greatest."""
    places = list(range(len(rows)))
    medians = [row["median"] for row in rows]
    low = [row["median"] - min(row["samples"]) for row in rows]
    high = [max(row["samples"]) - row["median"] for row in rows]
    colours = [COLOURS.get(row["subject"], _OTHER) for row in rows]
    axes.barh(places, medians, xerr=[low, high], color=colours, ecolor="#444444", capsize=2)
    axes.set_yticks(places, [row["name"] for row in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(unit, fontsize=8)
    axes.set_title(block["title"], fontsize=9)
    targets = {each["name"]: each for each in block["targets"]}
    for place, row in zip(places, rows, strict=True):
        if target := targets.get(row["name"]):
            axes.plot([target["value"]] * 2, [place - 0.45, place + 0.45], color="#c0392b", lw=2)


def _draw_against_size(
    axes: Axes, block: dict[str, Any], unit: str, rows: Sequence[dict[str, Any]]
) -> None:
    """A line for each operation over the sizes at which it was measured, both in decades; a mark
    where a target stands.
    """
    targets = {each["name"]: each["value"] for each in block["targets"]}
    lines: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    of = ""
    for row in rows:
        if (found := _AT_A_SIZE.fullmatch(row["name"])) is not None:
            operation, size, of = found.groups()
            lines.setdefault(operation, []).append((int(size.replace(",", "")), row))
    for operation, points in lines.items():
        places = [size for size, _ in points]
        medians = [row["median"] for _, row in points]
        low = [row["median"] - min(row["samples"]) for _, row in points]
        high = [max(row["samples"]) - row["median"] for _, row in points]
        drawn = axes.errorbar(
            places, medians, yerr=[low, high], marker="o", ms=3, capsize=2, label=operation
        )
        for size, row in points:
            if row["name"] in targets:
                colour = drawn.lines[0].get_color()
                axes.plot([size], [targets[row["name"]]], marker="_", ms=14, mew=2, color=colour)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(f"{of} (a dash is a target)", fontsize=8)
    axes.set_ylabel(unit, fontsize=8)
    axes.legend(fontsize=7)
    axes.set_title(block["title"], fontsize=9)


def main(arguments: Sequence[str]) -> int:
    """Exit status 0, or 2 for a file that is no report or a figure that can't be written."""
    if len(arguments) != 2:
        print("usage: python -m bench plot REPORT.json FIGURE.png", file=sys.stderr)
        return 2
    source, target = arguments

    def draw() -> int:
        check_target("figure", target)
        report = read_report(source)
        with written_to(target):
            plot_report(report, target)
        return 0

    return ended("bench plot", draw)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
