"""A result file is replaced in one step; a failure leaves what was there and no draft."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from radix.replay.output import draft_of
from radix.replay.report import (
    Check,
    IndexReport,
    Run,
    TenantHits,
    TieredReport,
    TieredRun,
    write_json,
)
from radix.replay.stopwatch import BYTES, REPLAY, TREE, StageTime

RUN = Run("lru", 10, 4, 3, 9, 0.5, {"a": TenantHits(1, 2, 4, 3)})


def test_failed_write_keeps_the_old_file_and_leaves_no_draft(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    target.write_text("old")
    with pytest.raises(KeyboardInterrupt), draft_of(target) as draft:
        draft.write_text("half")
        assert target.read_text() == "old"
        raise KeyboardInterrupt
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["result.json"]


def test_draft_takes_the_place_of_the_target(tmp_path: Path) -> None:
    target = tmp_path / "plot.png"
    with draft_of(target) as draft:
        assert draft.suffix == ".png"
        draft.write_text("new")
    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == ["plot.png"]


def test_pipe_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    """Renaming a draft over /dev/null or a pipe would destroy it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_json(str(pipe), {"a": 1})
    reader.join()
    assert json.loads(read[0]) == {"a": 1}
    assert pipe.is_fifo()


@pytest.mark.parametrize("through", ["the file", "a descriptor", "a name that is not there yet"])
def test_a_link_stays_one_and_what_it_names_is_written(through: str, tmp_path: Path) -> None:
    """The draft was renamed over the link: `--json /dev/stdout` of root, into a file, made a plain
    file of /dev/stdout.
    """
    folder = tmp_path / "far"
    folder.mkdir()
    named, link = folder / "result.json", tmp_path / "link.json"
    if through != "a name that is not there yet":
        named.write_text("old")
    with open(named if named.exists() else os.devnull) as file:
        descriptor = f"/proc/self/fd/{file.fileno()}"  # as /dev/stdout is
        link.symlink_to(descriptor if through == "a descriptor" else named)
        write_json(str(link), {"a": 1})
    assert link.is_symlink()
    assert json.loads(named.read_text()) == {"a": 1}
    assert os.listdir(folder) == ["result.json"]
    assert sorted(os.listdir(tmp_path)) == ["far", "link.json"]


def test_index_report_has_exactly_the_fields_of_its_schema() -> None:
    report = IndexReport("t", 2, 9, 5, (RUN,)).as_json()
    assert list(report) == [
        "schema_version",
        "trace",
        "requests",
        "blocks",
        "unique_blocks",
        "runs",
    ]
    assert report["schema_version"] == 1
    assert report["runs"] == [
        {
            "policy": "lru",
            "capacity_blocks": 10,
            "hit_blocks": 4,
            "usable_hit_blocks": 3,
            "total_blocks": 9,
            "seconds": 0.5,
            "tenants": {
                "a": {"requests": 1, "hit_blocks": 2, "total_blocks": 4, "resident_blocks": 3}
            },
        }
    ]


def test_tiered_report_passes_only_if_every_check_did() -> None:
    run = TieredRun(
        label="cold",
        unit="token",
        requests=2,
        prompt_tokens=64,
        hit_tokens={"device": 16, "host": 16},
        missed_tokens={"cold": 32},
        moved_bytes={"device to host": 4096},
        evicted_blocks={"device": 1},
        declined_blocks={},
        corrupt_blocks={},
        restored_blocks=0,
        loaded_blocks=1,
        verified_blocks=1,
        seconds=0.25,
        stored_bytes={"disk": 4000},
        written_bytes={"disk": {"payload": 4096, "index": 5904, "ahead": 0}},
        over_budget_blocks={},
        spanned_s=8640.0,
    )
    assert run.as_json()["write_amplification"] == {"disk": 2.5}
    assert run.as_json()["written_bytes_a_day"] == {"disk": 100_000.0}
    stages = (
        StageTime("match", TREE, 0.25, 2),
        StageTime("wait", BYTES, 0.5, 3),
        StageTime("rest", REPLAY, 0.25, 1),
    )
    good = Check("loaded blocks were verified", True, "1 of 1")
    bad = Check("the disk served hits", False, "0 tokens")
    report = TieredReport("demo", {"seed": 0}, (run,), (good, bad), stages)
    assert not report.passed
    assert TieredReport("demo", {}, (run,), (good,), ()).passed
    values = json.loads(json.dumps(report.as_json()))
    assert values["passed"] is False
    assert values["runs"][0]["saved_tokens"] == 32
    assert [check["passed"] for check in values["checks"]] == [True, False]
    assert values["parts"] == {TREE: 0.25, BYTES: 0.5, REPLAY: 0.25}
    assert values["stages"][1] == {
        "name": "wait",
        "part": BYTES,
        "seconds": 0.5,
        "calls": 3,
        "share": 0.5,
    }
