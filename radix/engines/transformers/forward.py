"""How a model is called, beside ``generate``: with positions, a mask of ones, and its own cache.
And the probe that every model goes through first: a prefix restored from blocks must go on as if it
had been computed. Keeps I24 for families that start their state anew in every longer forward.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from radix.engines.transformers.blocks import Blocks
from radix.engines.transformers.placement import Placement, check_alike, derive
from radix.engines.versions import accepts
from radix.errors import UnsupportedError

PROBE_PAGES = 3


class Forward:
    """Computes tokens of one prompt onto a cache: ``feed``, or a call for the logits. ``single``:
    one token at a time, but for the first forward of a prompt.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.single = False
        call = type(model).forward
        named = inspect.signature(call).parameters  # further keywords are taken and not looked at
        by_name = [name for name in ("past_key_values", "cache_params") if name in named]
        if not by_name:
            raise UnsupportedError(f"{type(model).__name__}.forward takes no past_key_values")
        self.cache_name = by_name[0]
        self._positions = accepts(call, "position_ids")
        self._keeps = accepts(call, "logits_to_keep")

    def cache(self) -> Any:
        """An empty cache with the layers that the configuration names."""
        return DynamicCache(config=self.model.config)

    def __call__(self, cache: Any, ids: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """Logits (tokens, vocabulary) of ``ids[0, start:end]``, computed behind the ``start``
        tokens that the cache holds. Cost: the forward.
        """
        return torch.cat([self._step(cache, ids, *span, 0) for span in self._spans(start, end)])

    def feed(self, cache: Any, ids: torch.Tensor, start: int, end: int) -> None:
        """The same where nobody asks for the logits."""
        for span in self._spans(start, end):
            self._step(cache, ids, *span, 1)

    def _spans(self, start: int, end: int) -> list[tuple[int, int]]:
        if self.single and start:
            return [(at, at + 1) for at in range(start, end)]
        return [(start, end)]

    def _step(self, cache: Any, ids: torch.Tensor, start: int, end: int, keep: int) -> torch.Tensor:
        given: dict[str, Any] = {self.cache_name: cache, "use_cache": True}
        if keep and self._keeps:
            given["logits_to_keep"] = keep
        if self.cache_name == "past_key_values":  # else a mask would be of the new tokens alone
            given["attention_mask"] = torch.ones((1, end), dtype=torch.long, device=ids.device)
        if self._positions:
            given["position_ids"] = torch.arange(start, end, device=ids.device)[None]
        with torch.no_grad():
            logits: torch.Tensor = self.model(input_ids=ids[:, start:end], **given).logits
        return logits[0].float()


def probe(forward: Forward, page_tokens: int, tolerance: float, token_by_token: bool) -> Placement:
    """The placement of the model's blocks, once a prefix restored from blocks was seen to go on
    as if it had been computed: no logit differs by more than ``tolerance``.

    ``token_by_token``: a family that starts its state anew is fed single tokens instead of being
    refused (``forward.single``). Raises ``UnsupportedError``. Cost: some forwards of three pages.
    """
    model = forward.model
    count = PROBE_PAGES * page_tokens
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    tokens = (np.arange(1, count + 1, dtype=np.int64) * 7919) % vocabulary
    ids = torch.from_numpy(tokens)[None].to(model.device)
    whole, part = forward.cache(), forward.cache()
    cold = forward(whole, ids, 0, count)[page_tokens:]
    forward(part, ids, 0, page_tokens)
    family = f"{type(model).__name__} ({model.config.model_type})"
    if forward.cache_name != "past_key_values":
        off = _off(forward(part, ids, page_tokens, count), cold)
        raise UnsupportedError(f"{family}: {_recurrent(off, tolerance)}")
    try:
        placement = derive(part, page_tokens, page_tokens)
        check_alike(placement, derive(whole, count, page_tokens))
    except UnsupportedError as error:
        raise UnsupportedError(f"{family}: {error}") from None
    off = _off(_resumed(forward, placement, part, ids), cold)
    if off > tolerance and token_by_token:
        forward.single = True
        off = _off(_resumed(forward, placement, part, ids), cold)
    if off > tolerance:
        raise UnsupportedError(f"{family}: {_restarts(off, tolerance, forward.single)}")
    return placement


def _resumed(forward: Forward, placement: Placement, part: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits behind a first page that went through blocks."""
    slot = np.zeros(1, np.int32)
    blocks = Blocks.fresh(placement.groups, 1)
    for number, rule in enumerate(placement.rules):
        if rule.per_position:
            placement.put_state(part, blocks, number, 0)
        else:
            placement.put_pages(part, blocks, number, 0, slot)
    cache, page = forward.cache(), placement.page_tokens
    placement.fill(cache, blocks, [slot] * len(placement.groups), page)
    return forward(cache, ids, page, ids.shape[1])


def _off(found: torch.Tensor, expected: torch.Tensor) -> float:
    off = float((found - expected).abs().max())
    return off if off == off else float("inf")


def _restarts(off: float, tolerance: float, single: bool) -> str:
    how = "even token by token" if single else "in one forward of several tokens"
    return (
        f"what goes on from a cached prefix {how} differs from what is computed whole: logits by "
        f"{off:.2g}, at most {tolerance:g} is let pass (tolerance=). "
        + (
            ""
            if single
            else "A family whose recurrent state starts anew in every forward of more "
            "than one token can be fed single tokens: token_by_token=True; a dtype that rounds "
            "more than float32 needs a larger tolerance."
        )
    )


def _recurrent(off: float, tolerance: float) -> str:
    text = "it takes cache_params instead of past_key_values, and cannot tell its length"
    if off > tolerance:
        text += (
            f"; its state starts anew in every forward of several tokens (logits off by {off:.2g})"
        )
    return text + ": purely recurrent models are not supported"
