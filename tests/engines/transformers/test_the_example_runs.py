"""The example talks, and tells that the turns before were not computed again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "transformers_chat.py"


def test_the_chat_computes_only_what_is_new(tmp_path: Path) -> None:
    """In about thirty lines."""
    assert len([line for line in EXAMPLE.read_text().splitlines() if line.strip()]) <= 36
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "", str(tmp_path / "kept")],
        input="Why is the sky blue?\nAnd at dusk?\nThanks!\n",
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Teacher:") == 3
    (found,) = re.findall(r"(\d+) of (\d+) tokens cached", done.stdout)
    assert int(found[0]) >= 0.4 * int(found[1])
    assert list((tmp_path / "kept").glob("slab-*"))
