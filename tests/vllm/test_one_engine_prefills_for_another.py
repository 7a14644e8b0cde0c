"""One vLLM that prefills for one that decodes, over a service: two servers of vLLM's own, told by
their configuration alone, behind the proxy of the example. Each prompt goes to the prefiller for
one token, and at once to the decoder, which loads its KV while that is still being stored, and
computes nothing of it but the end. The tokens are those of one engine without any of this.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.models import LLAMA, QWEN3_NEXT, Model
from tests.vllm.rig import ENVIRONMENT, ROOT, START_S, Engine, prompt
from tests.vllm.scenario import LENGTH, REACHABLE
from tests.vllm.test_native_offloading_over_a_service import over, serving

NEW = 12
PROXY = ROOT / "examples" / "vllm_prefill_decode.py"
HITS = "vllm:external_prefix_cache_hits_total"
QUERIES = "vllm:external_prefix_cache_queries_total"


def free_port() -> int:
    """A port that nothing listened on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def started(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process and all that it starts, ended with the block."""
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    with log.open("ab") as told:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=told, stderr=told, start_new_session=True
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def fetched(url: str, body: Mapping[str, Any] | None = None) -> bytes:
    """What a server answers."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=START_S) as answer:
        found: bytes = answer.read()
        return found


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Returns once it answers."""
    end = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError):
            fetched(url)
            return
        if process.poll() is not None or time.monotonic() > end:
            raise AssertionError(log.read_text(errors="replace")[-6000:])
        time.sleep(0.2)


@contextlib.contextmanager
def server(model: Model, folder: Path, address: str, log: Path, **given: Any) -> Iterator[str]:
    """A ``vllm serve`` over the service; its URL."""
    port = free_port()
    # `vllm serve` itself looks for a distribution of its name, which a CPU build does not have.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--tokens-only", "--enforce-eager"]
    command += ["--skip-tokenizer-init", "--dtype", model.dtype, "--max-model-len", "4096"]
    command += ["--max-num-seqs", "8", "--enable-prefix-caching", "--seed", "0"]
    command += ["--block-size", str(model.block_tokens)]
    for name, value in model.settings.items():
        command += [f"--{name.replace('_', '-')}", value]
    command += ["--kv-transfer-config", json.dumps(over(address, **given))]
    with started(command, log) as process:
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/health", process, log)
        yield url


def metric(url: str, name: str) -> float:
    """The sum of a metric over its labels, as vLLM tells it."""
    text = fetched(f"{url}/metrics").decode()
    found = re.findall(rf"^{re.escape(name)}(?:{{.*?}})? (\S+)$", text, re.M)
    return sum(map(float, found))


def answered(url: str, asked: list[int]) -> tuple[int, ...]:
    """What the engines behind the proxy say to a prompt, greedily."""
    sampling = {"temperature": 0.0, "max_tokens": NEW, "ignore_eos": True}
    body = {"token_ids": asked, "sampling_params": sampling}
    told = json.loads(fetched(f"{url}/inference/v1/generate", body))
    return tuple(told["choices"][0]["token_ids"])


@pytest.mark.timeout(1200)  # three engines start
@pytest.mark.parametrize("model", [LLAMA, QWEN3_NEXT], ids=lambda model: model.name)
def test_the_decoder_computes_no_prompt_that_the_prefiller_has_computed(
    model: Model,
    start: Callable[..., Engine],
    model_folder: Callable[[Model], Path],
    tmp_path: Path,
) -> None:
    """Of each of three prompts of 1,500 tokens 1,472 hit at once (1,280 of the hybrid), by vLLM's
    own counter; with the prefiller gone the decoder computes the prompt, and says the same.
    """
    prompts = [prompt(number, LENGTH) for number in range(4)]
    with start(model) as alone:
        cold = [alone.generate([one], NEW)[0].tokens for one in prompts]
    folder = model_folder(model)
    logs = [tmp_path / f"{name}.log" for name in ("prefiller", "decoder", "proxy")]
    with (
        serving(tmp_path) as service,
        server(model, folder, service.path, logs[1], wait_s=60.0) as decoder,
    ):
        with (
            server(model, folder, service.path, logs[0]) as prefiller,
            proxy(prefiller, decoder, logs[2]) as url,
        ):
            for one, expected in zip(prompts[:3], cold, strict=False):
                assert answered(url, one) == expected
            assert metric(decoder, QUERIES) == 3 * LENGTH
            assert metric(decoder, HITS) >= 3 * REACHABLE[model.name]
            assert metric(prefiller, HITS) == 0
        service.check()
        service.kill()  # nothing is waited for of a service that is gone
        with proxy(prefiller, decoder, logs[2]) as url:
            assert answered(url, prompts[3]) == cold[3]


@contextlib.contextmanager
def proxy(prefiller: str, decoder: str, log: Path) -> Iterator[str]:
    """The example, between the two; its URL."""
    port = free_port()
    command = [sys.executable, str(PROXY), prefiller, decoder, str(port)]
    with started(command, log) as process:
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/health", process, log)
        yield url
