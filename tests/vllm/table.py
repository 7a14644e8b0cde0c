"""The table at the end of ``make test-vllm``: what each scenario saw, and as one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True)
class Row:
    """One measured part of a scenario, tokens all of them.

    ``queried``: prompt tokens that vLLM asked the connector about; ``vllm_hits``: those that it
    says it got; ``our_hits``: those that the adapter says it gave, ``None`` where it was not asked;
    ``equal``: whether the tokens generated were those of the cold run.
    """

    scenario: str
    model: str
    mode: str
    queried: int | None
    vllm_hits: int | None
    our_hits: int | None
    equal: bool
    seconds: float


@dataclass(frozen=True)
class Upstream:
    """How files of vLLM's own tests went against ours; ``differs``: those that cannot pass, and
    why, one entry for each set of their parameters."""

    files: str
    passed: int
    failed: tuple[str, ...]
    differs: tuple[str, ...]
    seconds: float


def lines(rows: Sequence[Row]) -> list[str]:
    """The rows as a table of text, widths made to measure."""
    names = [field.name.replace("_", " ") for field in fields(Row)]
    cells = [[_told(value) for value in asdict(row).values()] for row in rows]
    widths = [max(len(line[i]) for line in [names, *cells]) for i in range(len(names))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [names, *cells]
    ]


def upstream_lines(rows: Sequence[Upstream]) -> list[str]:
    """What of vLLM's own tests passed, and by name what did not."""
    found = []
    for row in rows:
        found.append(
            f"{row.files}: {row.passed} passed, {len(row.failed)} failed, "
            f"{len(row.differs)} differ, {row.seconds:.0f} s"
        )
        found += [f"  failed   {name}" for name in row.failed]
        found += [f"  differs  {name}" for name in dict.fromkeys(row.differs)]
    return found


def one_line(rows: Sequence[Row], upstream: Sequence[Upstream]) -> str:
    """All of it as JSON on one line."""
    told = {"scenarios": [asdict(row) for row in rows], "upstream": [asdict(u) for u in upstream]}
    return json.dumps(told, separators=(",", ":"))


def _told(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "NO"
        case float():
            return f"{value:.1f}"
        case _:
            return str(value)
