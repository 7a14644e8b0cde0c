"""The tables on the terminal hold each number of the report, also of tiers only one pass used."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console, RenderableType

from radix.options import size_text
from radix.replay.report import (
    Check,
    IndexReport,
    ModelReport,
    ModelRun,
    Run,
    TieredReport,
    TieredRun,
)
from radix.replay.stopwatch import BYTES, REPLAY, TREE, StageTime
from radix.replay.tables import (
    checks_table,
    index_table,
    model_table,
    stages_table,
    tiered_table,
)

COLD = TieredRun(
    label="cold",
    unit="token",
    requests=7,
    prompt_tokens=40_000,
    hit_tokens={"device": 10_001, "host": 2_002},
    missed_tokens={"cold": 27_997},
    moved_bytes={"device to host": 3 << 20},
    evicted_blocks={"device": 4_004},
    declined_blocks={"disk": 6},
    corrupt_blocks={},
    restored_blocks=0,
    loaded_blocks=5_005,
    verified_blocks=5_006,
    seconds=1.25,
    stored_bytes={"disk": 3 << 20},
    written_bytes={"disk": {"payload": 4 << 20, "index": 11 << 10, "ahead": 2 << 20}},
    over_budget_blocks={"disk": 13},
    spanned_s=43_200.0,
)
WARM = TieredRun(
    label="warm",
    unit="token",
    requests=8,
    prompt_tokens=40_000,
    hit_tokens={"device": 0, "host": 0, "disk": 30_003},
    missed_tokens={"corrupt": 9_997},
    moved_bytes={"disk to host": 3 << 30},
    evicted_blocks={},
    declined_blocks={},
    corrupt_blocks={"disk": 7},
    restored_blocks=8_008,
    loaded_blocks=1_875,
    verified_blocks=1_875,
    seconds=0.5,
    stored_bytes={"disk": 0},
    written_bytes={"disk": {"payload": 0, "index": 0, "ahead": 0}},
    over_budget_blocks={},
    spanned_s=0.5,
)


def shown(table: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def row(text: str, name: str) -> list[str]:
    line = next(line for line in text.splitlines() if name in line)
    return [cell.strip() for cell in line.split("│")[2:-1]]


def test_tiered_table_has_a_column_for_each_pass() -> None:
    text = shown(tiered_table(TieredReport("demo", {}, (COLD, WARM), (), ())))
    assert row(text, "hit tokens from device") == ["10,001 (25.0 %)", "0 (0.0 %)"]
    assert row(text, "hit tokens from disk") == ["0 (0.0 %)", "30,003 (75.0 %)"]
    assert row(text, "tokens saved") == ["12,003 (30.0 %)", "30,003 (75.0 %)"]
    assert row(text, "missed tokens: corrupt") == ["0 (0.0 %)", "9,997 (25.0 %)"]
    assert row(text, "moved device to host") == ["3 MiB", "0 B"]
    assert row(text, "moved disk to host") == ["0 B", "3 GiB"]
    assert row(text, "blocks loaded") == ["5,005", "1,875"]
    assert row(text, "blocks verified") == ["5,006", "1,875"]
    assert row(text, "blocks evicted from device") == ["4,004", "0"]
    assert row(text, "blocks without room in disk") == ["6", "0"]
    assert row(text, "blocks corrupt on disk") == ["0", "7"]
    assert row(text, "blocks found on disk at opening") == ["0", "8,008"]
    assert row(text, "written to disk: payload") == ["4 MiB", "0 B"]
    assert row(text, "written to disk: index") == ["11 KiB", "0 B"]
    assert row(text, "written to disk for each byte stored") == ["2.00 times", "-"]
    assert row(text, "written to disk a day") == ["12.02 MiB", "0 B"]
    assert row(text, "blocks beyond the budget of disk") == ["13", "0"]
    assert row(text, "seconds") == ["1.25", "0.50"]


def test_entries_of_block_traces_are_called_blocks() -> None:
    run = replace(COLD, unit="block", declined_blocks={})
    text = shown(tiered_table(TieredReport("trace", {}, (run,), (), ())))
    assert row(text, "prompt blocks") == ["40,000"]
    assert row(text, "blocks saved") == ["12,003 (30.0 %)"]
    assert "tokens" not in text
    assert "corrupt" not in text


def test_stages_table_has_a_row_for_each_stage_and_a_sum_for_each_part() -> None:
    stages = (
        StageTime("match", TREE, 0.125, 1_000),
        StageTime("admit", TREE, 0.375, 1_001),
        StageTime("wait", BYTES, 1.25, 7),
        StageTime("rest", REPLAY, 0.25, 1),
    )
    text = shown(stages_table(TieredReport("trace", {}, (COLD,), (), stages)))
    assert row(text, TREE) == ["", "25.0 %", ""]
    assert row(text, "match") == ["0.125", "6.2 %", "1,000"]
    assert row(text, "admit") == ["0.375", "18.8 %", "1,001"]
    assert row(text, BYTES) == ["", "62.5 %", ""]
    assert row(text, "wait") == ["1.250", "62.5 %", "7"]
    assert row(text, "  rest") == ["0.250", "12.5 %", "1"]
    assert row(text, "all stages") == ["2.000", "100.0 %", ""]


def test_index_table_has_a_row_for_each_run() -> None:
    run = Run("lru", 9_139, 56_479, 56_400, 288_500, 0.1234, {})
    text = shown(index_table(IndexReport("folder/[b].jsonl", 12_031, 288_500, 182_790, (run,))))
    assert "[b].jsonl: 12,031 requests, 288,500 blocks, 182,790 unique" in text
    assert row(text, " lru ") == ["9,139", "56,479", "19.6 %", "56,400", "0.123"]


def model_report(odd_lengths: int) -> ModelReport:
    run = ModelRun(
        policy="lru",
        capacity_blocks=300,
        hit_blocks=45,
        usable_hit_blocks=44,
        total_blocks=99,
        seconds=0.123,
        tenants={},
        model="m",
        checkpoints="branch+turn",
        budget_bytes=3 << 30,
        hit_tokens=22_528,
        known_tokens=30_030,
        state_bytes=5 << 20,
        state_bytes_peak=6 << 20,
        resident_bytes={"attention": 1, "delta": 5 << 20},
        evicted_blocks={"attention": 7, "delta": 0},
    )
    return ModelReport(
        trace="folder/[b].jsonl",
        requests=1_234,
        blocks=99,
        unique_blocks=50,
        model="Qwen[3]",
        page_tokens=512,
        prompt_tokens=50_000,
        odd_lengths=odd_lengths,
        footprint_bytes=1 << 50,
        footprint_checkpoints="branch+turn",
        footprint_hit_tokens=45_056,
        runs=(run,),
    )


def test_model_table_has_a_row_for_each_budget_and_policy() -> None:
    text = shown(model_table(model_report(0)))
    title = (
        "[b].jsonl, Qwen[3]: 1,234 requests, 50,000 tokens; all that branch+turn keeps without a "
        "limit is 1 PiB and hits 45,056 tokens"
    )
    assert title in " ".join(text.split())
    assert row(text, "3 GiB") == ["branch+turn", "22,528", "45.1 %", "7,502", "5 MiB"]
    assert "do not fit" not in text


def test_model_table_says_where_lengths_do_not_fit() -> None:
    text = " ".join(shown(model_table(model_report(1_001))).split())
    assert "the lengths of 1,001 requests do not fit blocks of 512 tokens" in text


def test_failed_check_is_told_from_a_passed_one() -> None:
    text = shown(checks_table([Check("a", True, "1 of 1"), Check("b", False, "0 [of] 2")]))
    assert [line.split() for line in text.splitlines()] == [
        ["passed", "a", "1", "of", "1"],
        ["FAILED", "b", "0", "[of]", "2"],
    ]


def test_sizes_have_binary_units() -> None:
    assert [size_text(n) for n in (0, 1023, 1536, 1 << 30, 1 << 60)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "1 GiB",
        "1024 PiB",
    ]
