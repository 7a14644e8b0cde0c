"""Under vLLM's MultiConnector, beside its ExampleConnector: both are offered every block, ours
serves what it has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.vllm import scenario
from tests.vllm.models import LLAMA
from tests.vllm.rig import Engine, offloading
from tests.vllm.scenario import MIB, REACHABLE, Counted, Record


def test_multiconnector_serves_from_ours_beside_the_example_connector(
    start: Callable[..., Engine], tmp_path: Path, record: Record
) -> None:
    """Ours is asked first and has the prompt; the other one's files are there as well."""
    example = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "example")},
    }
    both = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [offloading(host_bytes=64 * MIB), example]},
    }
    with start(LLAMA, both, disable_hybrid_kv_cache_manager=True) as engine:
        counted = Counted(engine)
        asked = scenario.prompts(1)
        cold = engine.generate(asked)
        counted.look()
        assert engine.reset()
        warm = engine.generate(asked)
        equal = scenario.same_tokens(cold, warm)
        row, grown = scenario.row(
            "beside ExampleConnector", LLAMA, "one process", counted, equal=equal
        )
        record(row)
        assert equal, (cold, warm)
        assert row.vllm_hits == REACHABLE["llama"]
        assert row.our_hits == row.vllm_hits, grown
    assert any((tmp_path / "example").rglob("*.safetensors"))
