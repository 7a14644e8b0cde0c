"""The script for a GPU runs its calls on the CPU too, draws transfers and computing on one
timeline, notices wrong bytes, and says so where there is no device.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench import gpu


def test_on_the_cpu_it_moves_every_block_rightly_and_draws_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, report = tmp_path / "t.json", tmp_path / "r.json"
    assert gpu.main(["--cpu", "--trace", str(trace), "--json", str(report)]) == 0
    events = json.loads(trace.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"transfers", "compute"} <= names
    assert sum(span["name"] == "layer 0" for span in spans) >= 3
    assert any(span["name"] == "host to device" and span["dur"] > 0 for span in spans)
    (block,) = json.loads(report.read_text())["benchmarks"]
    rightly = [value for name, value in block["facts"].items() if "rightly" in name]
    assert rightly == [block["facts"]["blocks"]] * 4
    assert not block["targets"], "tensors on the CPU say nothing of a bus"
    assert "store, host blocks at random" in capsys.readouterr().out


@pytest.mark.parametrize("broken", ["store", "load"])
def test_wrong_bytes_are_a_status_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    move = gpu.Rig.move

    def moves_a_block_too_few(self: gpu.Rig, lower: gpu.Slots, *, storing: bool) -> None:
        slots = self.slots
        if storing == (broken == "store"):
            self.slots, lower = slots[:-1], lower[:-1]
        move(self, lower, storing=storing)
        self.slots = slots

    monkeypatch.setattr(gpu.Rig, "move", moves_a_block_too_few)
    assert gpu.main(["--cpu", "--trace", str(tmp_path / "t.json")]) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == gpu.NO_DEVICE == 3
    assert "no CUDA device" in capsys.readouterr().err
