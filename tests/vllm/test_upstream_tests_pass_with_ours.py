"""vLLM's own tests, from its source distribution, with ours in place of what they bring: the disk
tier for their example tier, the manager behind their mock of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.vllm import upstream
from tests.vllm.table import Upstream

VERSION = "0.32.0"
TIERING = "v1/kv_offload/tiering"
CONNECTOR = "v1/kv_connector/unit/offloading_connector"
_AGAIN = "its script stores again what is kept already; ours keeps a block once"
_IN_FLIGHT = "it says hit, past the manager, of a block still being stored; ours had said not yet"

# By stand-in: the files, and the tests that cannot pass, with the reason.
RUNS: Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
    "radix_as_example_tier": (
        tuple(
            f"{TIERING}/test_{name}.py"
            for name in ("tiering_offloading", "factory", "backpressure", "metrics")
        ),
        {},
    ),
    "radix_as_scripted_manager": (
        (f"{CONNECTOR}/test_scheduler.py",),
        {
            "test_offloading_connector": _AGAIN,
            "test_request_level_policy_stores_all_blocks": _AGAIN,
            "test_skip_reading_prefix_cache": _AGAIN,
            "test_max_load_tokens_limits_external_load": _AGAIN,
            "test_request_finished_mixed_full_attn_and_sliding_window": _AGAIN,
            "test_fence_at_update_state_after_alloc": _IN_FLIGHT,
        },
    ),
}


@pytest.mark.parametrize("stand_in", RUNS)
def test_all_but_the_named_tests_of_vllm_pass(
    stand_in: str, tmp_path: Path, record_upstream: Callable[[Upstream], None]
) -> None:
    """What fails is what is named here, no more and no less."""
    files, reasons = RUNS[stand_in]
    ran = upstream.run(VERSION, stand_in, files, tmp_path / "report.xml")
    record_upstream(ran.row(f"{stand_in}, {len(files)} files", reasons))
    assert ran.passed, ran.output[-4000:]
    failed = {upstream.bare(name) for name in ran.failed}
    assert failed == set(reasons), (dict(ran.failed), ran.output[-4000:])
