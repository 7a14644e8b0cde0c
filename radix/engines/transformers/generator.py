"""PrefixGenerator: a model's ``generate`` over a prefix cache. It puts together the forward of the
model, the placement of its cache in blocks, and a ``PrefixCache`` whose first tier is host memory.
One thread at a time, as the cache. What goes wrong with the cache costs hits, never a token.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from transformers import StoppingCriteria

from radix.cache import PrefixCache
from radix.engines.transformers.blocks import Blocks
from radix.engines.transformers.forward import Forward, probe
from radix.engines.transformers.identity import Identity
from radix.engines.transformers.recording import STEP_PAGES, Turn
from radix.engines.transformers.terms import (
    check_engine,
    check_mode,
    check_model,
    generation_kwargs,
    prompt_of,
)
from radix.errors import CapacityError, NeverFitsError, TierError, UnsupportedError
from radix.groups import Group
from radix.hints import Hints, check_hints
from radix.keys import Namespace
from radix.plan import Explanation
from radix.policy.checkpoint import Checkpoints
from radix.service.backend import Service
from radix.tier import Tier
from tiers.host import HostTier

TOLERANCE = 1e-2
LOAD_TIMEOUT_S = 30.0


class Restored(NamedTuple):
    """A cache of the model's own class, and of how many tokens at the start of the prompt it holds
    the state. The caller's, a copy.
    """

    past_key_values: Any
    tokens: int


def groups_of(
    model: Any,
    page_tokens: int = 16,
    *,
    tolerance: float = TOLERANCE,
    token_by_token: bool = False,
) -> tuple[Group, ...]:
    """What a cache keeps of this model, by group: block bytes, retention. For sizing tiers.

    Raises as ``PrefixGenerator``. Cost: the probe, some forwards of three pages.
    """
    check_engine()
    check_model(model)
    return probe(Forward(model), page_tokens, tolerance, token_by_token).groups


class PrefixGenerator:
    """Generation by one model with a prefix cache.

    Whole: ``generate``. By hand: ``restore``, ``store``. Ask: ``counters``, ``explain``,
    ``groups``. Run: ``weights_changed``, ``flush``, ``check``, ``close``; a context closes.

        tiers = [HostTier(1 << 30), DiskTier("kept", limit_bytes=8 << 30)]
        with PrefixGenerator(model, tiers) as cached:
            out = cached.generate(ids, max_new_tokens=64)    # as model.generate(ids, ...)
    """

    def __init__(
        self,
        model: Any,
        tiers: Sequence[Tier],
        *,
        service: Service | str | None = None,
        page_tokens: int = 16,
        revision: str | None = None,
        salt: bytes = b"",
        tolerance: float = TOLERANCE,
        token_by_token: bool = False,
        policy: str = "lru",
        write: str = "write_through",
        checkpoints: Checkpoints | None = None,
    ) -> None:
        """Probes the model, reads its weights once, opens the tiers.

        ``tiers``: a ``HostTier`` first, then what lies below, as a ``DiskTier``; they are closed
        with this. ``service``: where `radix serve` is, below all of them: its address, or a
        ``Service``; what it stored for others is a hit here, and one that is gone costs hits only.
        ``page_tokens``: the unit of matching. ``revision``: a name for the weights that
        changes whenever they do, so that they need not be read; None: their bytes are hashed.
        ``salt``: who may share, a tenant. ``tolerance``: by how much logits behind a restored
        prefix may differ in the probe (float32: 1e-2; dtypes that round more need more).
        ``token_by_token``: feed single tokens to families whose state starts anew in every longer
        forward, instead of refusing them. ``policy``, ``write``, ``checkpoints``: as of
        ``PrefixCache``. Raises ``UnsupportedError`` for a model, a cache layer or a tier that is
        not taken; ``TypeError``, ``ValueError``, ``TierError``; what a service refuses by. Cost:
        reads the weights once.
        """
        check_engine()
        check_model(model)
        if not tiers or not isinstance(tiers[0], HostTier):
            got = type(tiers[0]).__name__ if tiers else "none"
            raise TypeError(f"tiers must begin with a HostTier, not {got}")
        self.model = model
        self._forward = Forward(model)
        self._placement = probe(self._forward, page_tokens, tolerance, token_by_token)
        self.groups = self._placement.groups
        self._identity = Identity(model, revision)
        self._kind = (model.dtype, model.device)
        self._namespace = Namespace(model=str(model.config.model_type), salt=salt)
        with ExitStack() as undo:
            below = []
            if service is not None:
                below.append(Service.of(service).tier(self.groups, self._namespace))
                undo.callback(below[0].close)
            self.cache = PrefixCache(
                self.groups,
                [*tiers, *below],
                page_tokens=page_tokens,
                policy=policy,
                write=write,
                checkpoints=checkpoints,
                clock=time.monotonic_ns,
            )
            undo.callback(self.cache.close)
            self.cache.set_revision(self._identity.revision)
            undo.pop_all()
        self._blocks = Blocks.of_tier(tiers[0], self.groups)
        self._counts: Counter[str] = Counter()
        # Caches given out by ``restore``, and under which weights.
        self._lent: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    # ------------------------------------------------------------ generating
    def generate(
        self,
        input_ids: object,
        *,
        boundaries: Sequence[int] = (),
        cacheable_upto: int | None = None,
        hints: Hints | None = None,
        **kwargs: Any,
    ) -> Any:
        """What ``model.generate(input_ids, **kwargs)`` returns, computed from what is cached, and
        kept for the next prompt.

        ``input_ids``: one sequence, (1, tokens) or (tokens,). ``boundaries``: lengths at which
        other prompts will part, as the end of a system prompt. ``cacheable_upto``: tokens of which
        the state may be kept. ``hints``: what is known of its blocks, for the policy; seconds count
        from its end. Where the cache has no room it generates without it, counted. Raises
        ``UnsupportedError`` for a batch, padding, beams, assistants, other caches, and inputs that
        are not tokens; ``ValueError``, ``TypeError``. Cost: the tokens that are not cached.
        """
        check_hints(hints)
        ids = prompt_of(input_ids, self.model.device)
        given = generation_kwargs(self.model, ids, kwargs)
        criteria = list(given.pop("stopping_criteria", None) or ())
        cache = self._forward.cache()
        turn = self._begin(ids, boundaries, cacheable_upto)
        try:
            self._prefill(turn, cache, ids)
            if turn is not None:
                criteria.append(_Following(turn, cache, self.cache))
            given[self._forward.cache_name] = cache
            out = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), stopping_criteria=criteria, **given
            )
        except BaseException:
            if turn is not None:
                turn.abort()
            raise
        self._end(turn, hints)
        return out

    def _prefill(self, turn: Turn | None, cache: Any, ids: torch.Tensor) -> None:
        """Restores the hit, and computes up to the last length at which something must be kept."""
        last = ids.shape[1] - 1
        start, stops = 0, []
        if turn is not None:
            turn.restore(cache)
            start, stops = turn.hit_tokens, turn.cuts(last)
            self._placement.keep_passing(cache)
        if self._forward.single and start < last and (start or stops) and last not in stops:
            stops = [*stops, last]
        for stop in stops:
            self._forward.feed(cache, ids, start, stop)
            start = stop
            if turn is not None:
                turn.record(cache, ids, stop)
                self._placement.let_pass(cache)
                self._placement.keep_passing(cache)

    # ------------------------------------------------------------ by hand
    def restore(self, input_ids: object) -> Restored:
        """A cache that holds the longest cached prefix of a prompt, for a loop of one's own: go on
        with the tokens behind it, ``position_ids`` from there and a mask of ones.

        At least one token is left to compute. Layers that would give tokens up keep them, until
        ``store`` has taken them. Cost: the bytes of the hit.
        """
        ids = prompt_of(input_ids, self.model.device)
        cache, found = self._forward.cache(), 0
        turn = self._begin(ids, (), None)
        if turn is not None:
            try:
                turn.restore(cache)
            finally:
                self._end(turn)
            found = turn.hit_tokens
        self._placement.keep_passing(cache)
        self._lent[cache] = self._identity.revision
        return Restored(cache, found)

    def store(self, input_ids: object, past_key_values: Any, *, hints: Hints | None = None) -> int:
        """Keeps what a cache holds of ``input_ids``, just the tokens that were computed onto it.
        ``hints``: as of ``generate``.

        Tokens of the prompt that a next one can hit now; 0 where the cache holds too little:
        layers that had given tokens up, or a length off the page for models whose state is one for
        a length (store at multiples of the page); and where the weights are others than at its
        ``restore``. Raises ``ValueError`` where the cache holds another number of tokens,
        ``LayoutMismatchError`` where it is no cache as ``restore`` gives.
        Cost: the bytes that are new.
        """
        check_hints(hints)
        ids = prompt_of(input_ids, self.model.device)
        length = int(past_key_values.get_seq_length())
        if length != ids.shape[1]:
            raise ValueError(f"past_key_values holds {length} tokens, input_ids {ids.shape[1]}")
        self._placement.check(past_key_values)
        turn = self._begin(ids, (), None, counted=False)
        if turn is None:
            return 0
        try:
            revision = self._identity.revision
            alike = self._lent.get(past_key_values, revision) == revision
            if alike and self._placement.first_token(past_key_values) <= turn.hit_tokens:
                turn.record(past_key_values, ids, length)
            else:
                self._counts["generate.given up"] += 1
        finally:
            self._end(turn, hints)
        self._placement.let_pass(past_key_values)
        self._placement.keep_passing(past_key_values)
        match, _ = self.cache.match(_tokens(ids, 1), namespace=self._namespace)
        return int(match.hit_pages) * self.cache.page_tokens

    # ------------------------------------------------------------ requests
    def _begin(
        self,
        ids: torch.Tensor,
        boundaries: Sequence[int],
        cacheable_upto: int | None,
        *,
        counted: bool = True,
    ) -> Turn | None:
        """A request whose hit is in host memory; None where the cache has no room for it."""
        check_mode(self.model)
        if self._identity.stale:
            self.weights_changed()
        request = None
        self._seek(ids)
        for attempt in range(2):
            self.cache.poll()
            try:
                request = self.cache.admit(
                    _tokens(ids, 0),
                    namespace=self._namespace,
                    chunk_tokens=STEP_PAGES * self.cache.page_tokens,
                    boundaries=boundaries,
                    cacheable_upto=cacheable_upto,
                )
                request.wait(LOAD_TIMEOUT_S)
                break
            except NeverFitsError:
                break
            except CapacityError:
                if not attempt:
                    self.cache.flush()  # stores under way hold blocks that may go then
            except TierError:
                if request is not None:
                    request.abort()
                request = None
                break
            except BaseException:
                if request is not None:
                    request.abort()
                raise
        turn = None if request is None else Turn(self.cache, request, self._placement, self._blocks)
        if counted:
            self._count(turn, ids)
        return turn

    def _seek(self, ids: torch.Tensor) -> None:
        """Returns once it is known what others stored of a prompt, where any tier can say that."""
        if not any(tier.capability.finds for tier in self.cache.tiers):
            return
        with self.cache.prefetch(_tokens(ids, 0), namespace=self._namespace) as ahead:
            end = time.monotonic() + LOAD_TIMEOUT_S
            while not ahead.settled and time.monotonic() < end:
                self.cache.wait()
                self.cache.poll()

    def _count(self, turn: Turn | None, ids: torch.Tensor) -> None:
        counts = self._counts
        counts["generate.requests"] += 1
        counts["generate.prompt_tokens"] += ids.shape[1]
        if turn is None:
            counts["generate.without cache"] += 1
            return
        counts["generate.hit_tokens"] += turn.hit_tokens

    def _end(self, turn: Turn | None, hints: Hints | None = None) -> None:
        if turn is None:
            return
        if turn.stopped:
            self._counts["generate.recording stopped"] += 1
        turn.finish(hints)
        self.cache.poll()

    # ------------------------------------------------------------ asking and running
    @property
    def counters(self) -> Mapping[str, int]:
        """``generate.*``: requests, prompt tokens, those that came from the cache; and every
        counter of the cache by its dotted name (``match.hit_tokens.disk``). A copy.
        """
        return {**self.cache.counters(), **self._counts}

    def explain(self, input_ids: object) -> Explanation:
        """Why a prompt would hit as far as it would; changes nothing."""
        ids = prompt_of(input_ids, self.model.device)
        return self.cache.explain(_tokens(ids, 0), namespace=self._namespace)

    def weights_changed(self, revision: str | None = None) -> None:
        """Tells that the weights are others now: state of the old ones is never matched again and
        leaves first. Weights written in place or replaced are noticed at the next call anyway;
        those written through ``.data`` are not. ``revision``: their new name, where weights are
        named. ``UnsupportedError`` where the dtype or the device is another one: that needs a new
        ``PrefixGenerator``. Cost: reads the weights, where they are not named.
        """
        if (self.model.dtype, self.model.device) != self._kind:
            raise UnsupportedError(
                f"model is {self.model.dtype} on {self.model.device} now, was {self._kind[0]} on "
                f"{self._kind[1]}: make a new PrefixGenerator"
            )
        self._identity.renew(revision)
        self.cache.set_revision(self._identity.revision)

    def flush(self) -> None:
        """Waits until what is stored is durable."""
        self.cache.flush()

    def check(self) -> None:
        """Walks every invariant of the cache; ``InvariantError`` names the first broken."""
        self.cache.check()

    def close(self) -> None:
        """Makes durable what is stored and closes the tiers. Idempotent."""
        if not self.cache.gate.closed:
            try:
                self.cache.flush()
            finally:
                self._blocks.close()
                self.cache.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Following(StoppingCriteria):  # type: ignore[misc]  # transformers is not typed here
    """Called with each token that ``generate`` samples: keeps what filled a page. Stops nothing."""

    def __init__(self, turn: Turn, cache: Any, owner: PrefixCache) -> None:
        self._turn = turn
        self._cache = cache
        self._owner = owner

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if self._turn.follow(self._cache, input_ids):
            self._owner.poll()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def _tokens(ids: torch.Tensor, more: int) -> Any:
    """The prompt as int32, with ``more`` tokens behind it."""
    return np.pad(ids[0].cpu().numpy(), (0, more)).astype(np.int32)
