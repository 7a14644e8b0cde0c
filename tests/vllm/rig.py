"""A vLLM in a process of its own, driven order by order, and what it answered.

``Engine`` starts ``engine_process.py`` and speaks to it. Every process of an engine is in one
session, so that ``kill`` ends all of them at once and nothing outlives a test. What vLLM printed is
in ``log``; an order that fails raises ``EngineFailed`` with what the other side said and the end of
that log.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.vllm.models import VOCABULARY, Model

ROOT = Path(__file__).resolve().parents[2]
START_S = 300.0
ORDER_S = 300.0
LOG_TAIL = 6000

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "TORCH_COMPILE_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class EngineFailed(Exception):
    """An engine raised, ended or fell silent; the text says which, with the end of its log."""


@dataclass(frozen=True)
class Outcome:
    """What one request got: its tokens, their log-probabilities if asked for, and how many of its
    prompt's tokens were not computed because a cache held them."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    cached_tokens: int
    seconds: float


def prompt(number: int, length: int) -> list[int]:
    """A prompt of its own for each number: two of them share no prefix."""
    return [(position * 7 + 31 * number) % (VOCABULARY - 24) + 3 for position in range(length)]


def offloading(**extra: Any) -> dict[str, Any]:
    """The connector configuration that puts ``RadixOffloadingSpec`` with these options to work."""
    chosen = {
        "spec_name": "RadixOffloadingSpec",
        "spec_module_path": "radix.engines.vllm",
        "offload_prompt_only": False,
    }
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": chosen | extra,
    }


class Engine:
    """One vLLM over a model's folder, from ``with`` to the end of its block.

    ``connector`` is what ``KVTransferConfig`` takes, ``settings`` what ``vllm.LLM`` takes besides.
    With ``processes=False`` all of vLLM is in the one child, else the engine core and the workers
    are processes of their own (vLLM's default). Leaving the block shuts the engine down in order.
    """

    def __init__(
        self,
        model: Model,
        folder: Path,
        connector: Mapping[str, Any] | None = None,
        *,
        log: Path,
        processes: bool = False,
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.log = log
        self.started_s = 0.0
        self._order = {
            "do": "start",
            "connector": connector,
            "settings": self._settings(model, folder) | settings,
        }
        self._environment = os.environ | ENVIRONMENT | dict(environment or {})
        self._environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(processes))
        given = os.environ.get("PYTHONPATH")
        self._environment["PYTHONPATH"] = f"{ROOT}:{given}" if given else str(ROOT)
        self._child: subprocess.Popen[str] | None = None
        self._answers = -1
        self._read = b""

    @staticmethod
    def _settings(model: Model, folder: Path) -> dict[str, Any]:
        """What every engine of the tests is started with."""
        settings = {
            "model": str(folder),
            "dtype": model.dtype,
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "enable_prefix_caching": True,
            "disable_log_stats": False,
            "max_model_len": 4096,
            "max_num_seqs": 8,
            "seed": 0,
        }
        if model.block_tokens is not None:
            settings["block_size"] = model.block_tokens
        return settings | dict(model.settings)

    def __enter__(self) -> Self:
        started = time.monotonic()
        ours, theirs = os.pipe()
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("engine_process.py")), str(theirs)],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(theirs,),
                start_new_session=True,
                text=True,
            )
        os.close(theirs)
        self._answers = ours
        try:
            self._do(self._order, START_S)
        except BaseException:
            self.kill()
            raise
        self.started_s = time.monotonic() - started
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self._child is not None:
                self.close()
        finally:
            self.kill()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int = 8,
        *,
        logprobs: bool = False,
        salt: str | None = None,
        hints: object = None,
    ) -> list[Outcome]:
        """Run all prompts together, greedily, to the end; one outcome each, in order. ``hints``:
        what each request says of its blocks.
        """
        answers = self._ask(
            "generate",
            prompts=[list(one) for one in prompts],
            max_tokens=max_tokens,
            logprobs=0 if logprobs else None,
            salt=salt,
            hints=hints,
        )
        return [
            Outcome(
                tuple(told["tokens"]),
                None if told["logprobs"] is None else tuple(told["logprobs"]),
                told["cached"],
                told["seconds"],
            )
            for told in answers
        ]

    def abort(self, prompts: Sequence[Sequence[int]], max_tokens: int, after: int) -> list[int]:
        """Start the prompts, abort each after ``after`` tokens or a few more; how many it had."""
        asked = [list(one) for one in prompts]
        return list(self._ask("abort", prompts=asked, max_tokens=max_tokens, after=after))

    def reset(self, *, connector: bool = False) -> bool:
        """``reset_prefix_cache``: the device forgets; with ``connector`` what is beside it too."""
        return bool(self._ask("reset", connector=connector))

    def metrics(self) -> dict[str, float]:
        """vLLM's own metrics by name; a histogram as its ``_sum`` and ``_count``."""
        return dict(self._ask("metrics"))

    def groups(self) -> list[tuple[str, int, int]]:
        """The cache groups as (class, tokens a block, layers). Only with ``processes=False``."""
        return [(name, tokens, layers) for name, tokens, layers in self._ask("groups")]

    def ask(self, path: str) -> Any:
        """What stands at a dotted path under the engine core. Only with ``processes=False``."""
        return self._ask("ask", path=path)

    def close(self) -> None:
        """Shut the engine down in order and wait for its end.

        Raises ``EngineFailed`` when the process ended with anything but success.
        """
        assert self._child is not None and self._child.stdin is not None
        self._ask("shutdown")
        self._child.stdin.close()
        try:
            status = self._child.wait(ORDER_S)
        except subprocess.TimeoutExpired:
            raise self._failed("did not end after its shutdown") from None
        if status != 0:
            raise self._failed(f"ended with status {status}")

    def kill(self) -> None:
        """End every process of the engine at once, as a crash of the machine's software would."""
        if self._child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        if self._child.stdin is not None and not self._child.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()
        os.close(self._answers)
        self._child = None

    def _ask(self, name: str, **order: Any) -> Any:
        """Give one order and return what was done."""
        return self._do({"do": name, **order}, ORDER_S)

    def _do(self, order: Mapping[str, Any], patience_s: float) -> Any:
        """Give one order, wait for its answer and return what was done."""
        assert self._child is not None and self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(order) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise self._failed(f"was gone before {order['do']}") from None
        deadline = time.monotonic() + patience_s
        while b"\n" not in self._read:
            left = max(0.0, deadline - time.monotonic())
            waiting = select.poll()
            waiting.register(self._answers, select.POLLIN)
            if not waiting.poll(left * 1000):
                raise self._failed(f"gave no answer to {order['do']} in {patience_s} s")
            more = os.read(self._answers, 1 << 16)
            if not more:
                raise self._failed(f"ended during {order['do']}")
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        answer = json.loads(line)
        if "failed" in answer:
            raise self._failed(f"failed at {order['do']}: {answer['failed']}")
        return answer["done"]

    def _failed(self, what: str) -> EngineFailed:
        """An exception that says what happened and how the log ends."""
        text = self.log.read_text(errors="replace")[-LOG_TAIL:]
        return EngineFailed(f"the engine {what}\n--- end of its log ---\n{text}")
