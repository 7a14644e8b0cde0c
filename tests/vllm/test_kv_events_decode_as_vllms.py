"""What we publish is what vLLM's own classes decode: every field of theirs has our value."""

from __future__ import annotations

from vllm.distributed.kv_events import KVEventBatch

from tests.kvdecoding import decoded_alike


def test_their_decoder_reads_our_batches() -> None:
    decoded_alike(KVEventBatch, groups=True)
