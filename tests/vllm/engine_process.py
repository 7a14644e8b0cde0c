"""The process in which a vLLM of the tests lives: it takes one order a line and answers each.

Orders come as JSON lines on standard input, answers go as JSON lines to the file descriptor that
the first argument names; what vLLM itself prints stays on the ordinary outputs. See ``rig.py``,
which is the other side.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any

_OF_ALL = ("model_name", "engine")


class Engine:
    """One ``vllm.LLM`` and the orders that it follows: its methods named ``do_*``."""

    def __init__(self, settings: dict[str, Any], connector: dict[str, Any] | None) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        transfer = None if connector is None else KVTransferConfig(**connector)
        self._llm = LLM(kv_transfer_config=transfer, **settings)
        self._engine = self._llm.llm_engine
        self._asked = 0

    def do_generate(
        self,
        prompts: list[list[int]],
        max_tokens: int,
        logprobs: int | None,
        salt: str | None,
        hints: Any,
    ) -> list[dict[str, Any]]:
        """Generate greedily for all prompts together, and say what of each came from a cache."""
        started = time.monotonic()
        asked = [self._prompt(prompt, salt) for prompt in prompts]
        sampling = self._sampling(max_tokens, logprobs)
        if hints is not None:
            sampling.extra_args = {"kv_transfer_params": {"radix_hints": hints}}
        found = self._llm.generate(asked, sampling, use_tqdm=False)
        spent = time.monotonic() - started
        return [_told(output, spent) for output in found]

    def do_abort(self, prompts: list[list[int]], max_tokens: int, after: int) -> list[int]:
        """Start the prompts, abort all once each has ``after`` tokens, return how many it had.

        With ``after=0`` they are aborted before the engine took its first step.
        """
        names = []
        for prompt in prompts:
            self._asked += 1
            names.append(f"aborted-{self._asked}")
            sampling = self._sampling(max_tokens, None)
            self._engine.add_request(names[-1], self._prompt(prompt, None), sampling)
        had = dict.fromkeys(names, 0)
        # LLM.generate asks for final outputs only; what is added here tells every token.
        while after > 0 and min(had.values()) < after:
            for output in self._engine.step():
                had[output.request_id] = len(output.outputs[0].token_ids)
        self._engine.abort_request(names)
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return [had[name] for name in names]

    def do_reset(self, connector: bool) -> bool:
        """Forget what the device holds, and with ``connector`` what is held beside it."""
        return bool(self._llm.reset_prefix_cache(reset_connector=connector))

    def do_metrics(self) -> dict[str, float]:
        """Every counter, gauge and histogram (its sum and count) by name, summed over its labels,
        and under ``name{label=value}`` for each label that is not the model or the engine.
        """
        self._engine.do_log_stats()
        found: dict[str, float] = {}
        for metric in self._llm.get_metrics():
            labels = {k: v for k, v in (metric.labels or {}).items() if k not in _OF_ALL}
            names = [metric.name, *(f"{metric.name}{{{k}={v}}}" for k, v in labels.items())]
            told = {"": getattr(metric, "value", None), "_sum": getattr(metric, "sum", None)}
            told["_count"] = getattr(metric, "count", None)
            for ending, value in told.items():
                if isinstance(value, int | float):
                    for name in names:
                        found[name + ending] = found.get(name + ending, 0) + value
        return found

    def do_groups(self) -> list[list[Any]]:
        """The cache groups as (class, tokens a block, layers); only where the core lives here."""
        core = self._engine.engine_core.engine_core
        config = core.scheduler.kv_cache_manager.kv_cache_config
        specs = [(group.kv_cache_spec, group.layer_names) for group in config.kv_cache_groups]
        return [[type(spec).__name__, spec.block_size, len(layers)] for spec, layers in specs]

    def do_ask(self, path: str) -> Any:
        """What stands at a dotted path under the engine core; only where the core lives here.

        A step that ends in ``()`` is called, a step of digits is an index.
        """
        found: Any = self._engine.engine_core.engine_core
        for step in path.split("."):
            if step.isdigit():
                found = found[int(step)]
            elif step.endswith("()"):
                found = getattr(found, step[:-2])()
            else:
                found = getattr(found, step)
        return found if isinstance(found, int | float | str | list | dict) else repr(found)

    def do_shutdown(self) -> None:
        """Let the engine end in order: workers first, then what the scheduler holds.

        vLLM's own patience with another process is five seconds; then it kills.
        """
        self._engine.engine_core.shutdown(timeout=60)

    def _prompt(self, tokens: list[int], salt: str | None) -> dict[str, Any]:
        """A prompt as vLLM takes it."""
        made: dict[str, Any] = {"prompt_token_ids": tokens}
        if salt is not None:
            made["cache_salt"] = salt
        return made

    def _sampling(self, max_tokens: int, logprobs: int | None) -> Any:
        """Greedy sampling of exactly so many tokens."""
        from vllm import SamplingParams

        return SamplingParams(
            temperature=0,
            max_tokens=max_tokens,
            logprobs=logprobs,
            detokenize=False,
            ignore_eos=True,
        )


def _told(output: Any, spent: float) -> dict[str, Any]:
    """One request's outcome as JSON takes it."""
    made = output.outputs[0]
    logprobs = None
    if made.logprobs is not None:
        chosen = zip(made.token_ids, made.logprobs, strict=True)
        logprobs = [place[token].logprob for token, place in chosen]
    return {
        "tokens": list(made.token_ids),
        "logprobs": logprobs,
        "cached": output.num_cached_tokens or 0,
        "seconds": spent,
    }


def main() -> None:
    """Follow orders until there are no more."""
    with os.fdopen(int(sys.argv[1]), "w") as answers:
        engine: Engine | None = None
        for line in sys.stdin:
            order = json.loads(line)
            name = order.pop("do")
            try:
                if name == "start":
                    engine = Engine(**order)
                    answer: dict[str, Any] = {"done": None}
                else:
                    answer = {"done": getattr(engine, f"do_{name}")(**order)}
            except Exception:  # outermost: told to the test, which raises it
                answer = {"failed": traceback.format_exc()}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
