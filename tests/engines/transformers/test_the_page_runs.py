"""The code of the adapter's page runs as it stands, one block after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.engines.transformers.families import BY_NAME

PAGE = Path(__file__).resolve().parents[3] / "docs" / "engines" / "transformers.md"


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    """With a tiny model in place of the one that is named."""
    BY_NAME["Llama"].model().save_pretrained(tmp_path / "model")
    text = PAGE.read_text().replace('"MODEL"', repr(str(tmp_path / "model")))
    text = text.replace('"/var/lib/radix"', repr(str(tmp_path / "kept")))
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert len(blocks) == 3
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    names["host"].close()
