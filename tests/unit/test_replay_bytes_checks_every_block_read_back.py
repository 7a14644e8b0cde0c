"""A replay with real bytes: hits come from every tier and hold the right bytes, a directory is
opened warm, damage on the disk costs hits and nothing else, and what is wrong fails the run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radix.cli import main
from radix.options import OptionError
from radix.replay.bytes import replay_bytes
from radix.replay.content import Content
from radix.replay.history import History
from radix.replay.options import TierSizes
from radix.replay.progress import Progress
from radix.replay.report import TieredReport, TieredRun
from radix.replay.traces import read_trace

BLOCK_BYTES = 4096
HOLDER = """\
import sys
from radix.cache import PrefixCache
from radix.groups import Group
from tiers.disk import DiskTier
with PrefixCache([Group.full("kv", 4096)], [DiskTier(sys.argv[1], limit_bytes=256 << 20)]):
    print("held", flush=True)
    sys.stdin.read()
"""


def prompts_of(seed: int = 0, count: int = 120, chains: int = 12) -> list[list[int]]:
    """Chains that are asked for again and again, at several lengths, in random order."""
    random = np.random.default_rng(seed)
    whole = [random.integers(0, 1 << 20, size=24).tolist() for _ in range(chains)]
    return [whole[random.integers(chains)][: int(random.integers(2, 25))] for _ in range(count)]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "trace.jsonl", prompts_of())


def write(path: Path, prompts: Sequence[Sequence[int]]) -> Path:
    lines = [json.dumps({"timestamp": n, "hash_ids": ids}) for n, ids in enumerate(prompts)]
    path.write_text("\n".join(lines))
    return path


def replay(
    trace: Path,
    sizes: TierSizes,
    data: Path | None = None,
    block_bytes: int = BLOCK_BYTES,
    verify: bool = True,
) -> tuple[TieredReport, History]:
    return replay_bytes(read_trace(str(trace)), sizes, block_bytes, data, verify, Progress())


def the_run(found: tuple[TieredReport, History]) -> TieredRun:
    report, _ = found
    assert report.passed, report.checks
    (run,) = report.runs
    return run


def test_every_tier_serves_hits_and_every_loaded_block_is_verified(trace: Path) -> None:
    report, history = replay(trace, TierSizes(32, 64, 512))
    run = the_run((report, history))
    assert all(run.hit_tokens[tier] > 0 for tier in ("device", "host", "disk"))
    assert run.loaded_blocks == run.verified_blocks > 0
    assert run.saved_tokens + sum(run.missed_tokens.values()) == run.prompt_tokens
    assert run.prompt_tokens == sum(map(len, prompts_of()))
    assert run.unit == "block"
    last = history.samples[-1]
    assert last.prompt_tokens == run.prompt_tokens
    assert last.hit_tokens == run.hit_tokens
    assert last.moved_bytes == run.moved_bytes
    for sample in history.samples:
        for tier, used in sample.used_bytes.items():
            assert 0 <= used <= history.capacity_bytes[tier]


def test_hits_equal_those_of_an_index_that_never_forgets(trace: Path) -> None:
    # With a disk for everything no block is ever lost, so each known block but the last hits.
    seen: set[tuple[int, ...]] = set()
    expected = 0
    for prompt in prompts_of():
        path = [tuple(prompt[: end + 1]) for end in range(len(prompt))]
        expected += sum(block in seen for block in path[:-1])
        seen.update(path)
    assert the_run(replay(trace, TierSizes(32, 64, 512))).saved_tokens == expected


@pytest.mark.parametrize(
    "sizes",
    [TierSizes(32, 0, 0), TierSizes(32, 64, 0), TierSizes(32, 0, 512), TierSizes(25, 25, 300)],
)
def test_tiers_may_be_left_out(trace: Path, sizes: TierSizes) -> None:
    run = the_run(replay(trace, sizes))
    assert run.saved_tokens > 0
    assert set(run.hit_tokens) == {
        tier for tier in ("device", "host", "disk") if getattr(sizes, tier)
    }


@pytest.mark.parametrize("block_bytes", [1, 1000, 4100, 70_000])
def test_blocks_may_have_any_size(trace: Path, block_bytes: int) -> None:
    run = the_run(replay(trace, TierSizes(32, 64, 512), block_bytes=block_bytes))
    assert run.verified_blocks > 0


def test_prompt_longer_than_the_device_is_cut_to_what_fits(tmp_path: Path) -> None:
    long = list(range(50))
    run = the_run(replay(write(tmp_path / "t", [long, long]), TierSizes(20, 0, 0)))
    assert run.missed_tokens["longer than the device"] == 2 * 30
    assert run.hit_tokens == {"device": 19}
    assert run.prompt_tokens == 100


def test_token_traces_use_full_pages_only(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    record = {"t": 0, "ref": -1, "keep": 0, "add": list(range(40)), "out": [1]}
    path.write_text("\n".join(json.dumps(record) for _ in range(2)))
    run = the_run(replay(path, TierSizes(8, 0, 0)))
    assert (run.unit, run.hit_tokens) == ("token", {"device": 32})


def test_directory_of_an_earlier_replay_is_opened_warm(trace: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    cold = the_run(replay(trace, TierSizes(32, 64, 512), data))
    warm = the_run(replay(trace, TierSizes(32, 64, 512), data))
    unique = {tuple(p[: end + 1]) for p in prompts_of() for end in range(len(p))}
    assert (cold.restored_blocks, warm.restored_blocks) == (0, len(unique))
    assert warm.saved_tokens == sum(len(prompt) - 1 for prompt in prompts_of())
    assert warm.missed_tokens == {"below one page": len(prompts_of())}


def test_damage_on_the_disk_costs_hits_and_nothing_else(trace: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    replay(trace, TierSizes(32, 64, 512), data)
    slabs = [path for path in data.rglob("*") if path.is_file() and path.stat().st_size >= 1 << 20]
    slabs = [path for path in slabs if "mdb" not in path.name]
    assert slabs
    for path in slabs:
        raw = bytearray(path.read_bytes())
        for block in range(0, len(raw), 5 * BLOCK_BYTES):
            raw[block + 17] ^= 4
        path.write_bytes(raw)
    run = the_run(replay(trace, TierSizes(32, 64, 512), data))
    assert run.corrupt_blocks["disk"] > 0
    assert 0 < run.saved_tokens < sum(len(prompt) - 1 for prompt in prompts_of())
    assert run.missed_tokens["corrupt"] > 0
    after = the_run(replay(trace, TierSizes(32, 64, 512), data))
    assert after.corrupt_blocks == {}


def test_wrong_bytes_in_a_hit_fail_the_run(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_right = Content.write

    def write_wrong(content: Content, slots: Any, keys: Any) -> None:
        write_right(content, slots, keys[::-1])

    monkeypatch.setattr(Content, "write", write_wrong)
    tiers = ["--tiers", "device=32,host=64", "--block-bytes", "64"]
    assert main(["replay", str(trace), *tiers, "--verify"]) == 1
    out, err = capsys.readouterr()
    assert "FAILED" in out
    assert err.startswith("radix: check failed: hits held the right bytes: ")
    assert main(["replay", str(trace), *tiers]) == 0


def test_command_line_shows_table_json_and_plot(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot, data = tmp_path / "plot.png", tmp_path / "data"
    tiers = ["--tiers", "device=32,host=64,disk=512", "--block-bytes", "4096", "--verify"]
    arguments = ["replay", str(trace), *tiers, "--data", str(data), "--plot", str(plot)]
    assert main([*arguments, "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is True
    assert report["settings"]["data"] == str(data)
    assert report["runs"][0]["restored_blocks"] == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "blocks found on disk at opening" in out
    assert "blocks verified" in out


def test_temporary_directory_is_gone_after_the_run(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    replay(trace, TierSizes(32, 0, 512))
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]


def test_tiers_beyond_the_memory_are_refused_before_anything_is_made(
    trace: Path, tmp_path: Path
) -> None:
    for sizes in (TierSizes(1 << 30, 0, 0), TierSizes(8, 1 << 30, 0)):
        with pytest.raises(OptionError, match=r"--tiers: device and host take \d+ bytes"):
            replay(trace, sizes, block_bytes=1 << 20)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]


def test_disk_tier_beyond_its_drive_is_refused(trace: Path, tmp_path: Path) -> None:
    data = tmp_path / "not" / "yet"
    with pytest.raises(OptionError, match=r"--tiers: the disk tier takes \d+ bytes; the drive of"):
        replay(trace, TierSizes(8, 0, (1 << 31) - 1), data, block_bytes=1 << 24)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]


def refused(capsys: pytest.CaptureFixture[str], trace: Path, data: Path) -> str:
    tiers = ["--tiers", "device=32,disk=512", "--block-bytes", "4096"]
    assert main(["replay", str(trace), *tiers, "--data", str(data)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


def test_directory_that_another_process_holds_is_refused_in_one_line(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(data)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        err = refused(capsys, trace, data)
        assert err.startswith("radix: --data: ")
        assert str(data) in err
        assert holder.stdin is not None
        holder.stdin.close()
    assert holder.returncode == 0


def test_directory_of_a_newer_format_is_refused_untouched(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    replay(trace, TierSizes(32, 0, 512), data)
    form = json.loads((data / "format").read_text())
    (data / "format").write_text(json.dumps({**form, "version": 99}))
    before = {path: path.stat().st_mtime_ns for path in sorted(data.rglob("*"))}
    assert "99" in refused(capsys, trace, data)
    assert {path: path.stat().st_mtime_ns for path in sorted(data.rglob("*"))} == before


def test_path_that_is_no_directory_is_refused_in_one_line(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert str(trace) in refused(capsys, trace, trace)
    assert os.path.getsize(trace) > 0


def test_budget_of_writes_goes_by_the_time_of_the_trace(tmp_path: Path) -> None:
    """Prompts a minute apart; what a day of them may write is an eighth of what they would."""
    lines = [
        json.dumps({"timestamp": 60_000 * n, "hash_ids": [100 * n + i for i in range(20)]})
        for n in range(120)
    ]
    (tmp_path / "trace.jsonl").write_text("\n".join(lines))
    sizes = ("--tiers", "device=40,host=80,disk=4000", "--block-bytes", str(BLOCK_BYTES))
    found = {}
    for name, more in {
        "all": (),
        "budget": ("--write-budget", "14400KiB"),
        "seconds": ("--write-budget", "14400KiB", "--time-unit", "s"),
    }.items():
        target = tmp_path / f"{name}.json"
        plain = [str(tmp_path / "trace.jsonl"), *sizes, *more, "--json", str(target)]
        assert main(["replay", *plain]) == 0
        (found[name],) = json.loads(target.read_text())["runs"]
    everything = found["all"]["stored_bytes"]["disk"]
    assert everything == 2400 * BLOCK_BYTES and found["all"]["write_amplification"]["disk"] > 1
    less = found["budget"]
    assert 0 < less["stored_bytes"]["disk"] < everything // 4
    assert less["over_budget_blocks"]["disk"] == less["declined_blocks"]["disk"] > 1000
    hour = 14400 * 1024 // 24
    wrote = less["written_bytes"]["disk"]
    # an hour's share at once and one an hour, and what a transaction takes beside its blocks
    assert wrote["payload"] + wrote["index"] <= 3 * hour + 40 * BLOCK_BYTES + wrote["ahead"]
    assert found["seconds"]["spanned_s"] == 1000 * less["spanned_s"] == 119 * 60 * 1000
    assert found["seconds"]["stored_bytes"]["disk"] == everything, "a thousand times the time"


@pytest.mark.parametrize(
    ("option", "value", "what"),
    [
        ("--write", "sometimes", "is not one of write_through"),
        ("--write-budget", "much", "expected a size such as 4GiB"),
        ("--time-unit", "weeks", "is neither s nor ms"),
    ],
)
def test_how_to_write_is_refused_by_name(
    trace: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, what: str
) -> None:
    tiers = ["--tiers", "device=40,host=80,disk=400"]
    assert main(["replay", str(trace), *tiers, option, value]) == 2
    assert option in (told := capsys.readouterr().err) and what in told
