"""What we publish is what vLLM's own classes decode: every field of theirs has our value."""

from __future__ import annotations

from pathlib import Path

from vllm.distributed.kv_events import KVEventBatch

from tests.kvdecoding import decoded_alike, service_decoded_alike


def test_their_decoder_reads_our_batches() -> None:
    decoded_alike(KVEventBatch, groups=True)


def test_their_classes_read_what_is_told_of_a_service(tmp_path: Path) -> None:
    service_decoded_alike(KVEventBatch, tmp_path, groups=True, keys=True)
