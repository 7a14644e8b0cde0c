"""The code of the adapter's page runs as it stands, one block after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.engines.transformers.families import BY_NAME
from tests.service.rig import Service

PAGE = Path(__file__).resolve().parents[3] / "docs" / "engines" / "transformers.md"


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    """With a tiny model in place of the one that is named, and a service in place of that one."""
    BY_NAME["Llama"].model().save_pretrained(tmp_path / "model")
    text = PAGE.read_text().replace('"MODEL"', repr(str(tmp_path / "model")))
    text = text.replace('"/var/lib/radix"', repr(str(tmp_path / "kept")))
    text = text.replace('"/run/radix/radix.sock"', repr(str(tmp_path / "radix.sock")))
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert len(blocks) == 4
    names: dict[str, Any] = {}
    with Service(tmp_path) as service:
        for block in blocks:
            exec(compile(block, PAGE.name, "exec"), names)
        assert service.status()["stores"][0]["tiers"][0]["used_bytes"]
    names["host"].close()
