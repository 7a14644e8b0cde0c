"""A made-up mix of traffic for the demo: chats, agents and a batch scan, all from one seed.

Chats share system prompts and grow turn by turn. Agents share a long tool prompt, append tool
results, and now and then roll back to an earlier step and try another way. The scan sends long
documents once each, which is what flushes a cache that keeps whatever came last. Kept here: the
same seed and sizes give the same operations, ids and order included; a session sends its next
request only after the last one ended; no more than `running` requests are open at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from radix.replay.traces import Int32Array

Kind: TypeAlias = Literal["chat", "agent", "scan"]
Action: TypeAlias = Literal["admit", "finish", "abort"]


@dataclass(frozen=True, slots=True)
class Span:
    """A range of lengths in tokens, both ends included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ValueError(f"expected 1 <= low <= high, got {self.low} and {self.high}")


@dataclass(frozen=True, slots=True)
class WorkloadSizes:
    """How much traffic of which shape. Probabilities are in [0, 1], lengths in tokens."""

    chats: int = 20
    chat_turns: int = 6
    system_prompts: int = 3
    system_tokens: int = 480
    question_tokens: Span = Span(24, 160)
    answer_tokens: Span = Span(40, 200)
    agents: int = 6
    agent_steps: int = 14
    tool_tokens: int = 900
    task_tokens: Span = Span(120, 300)
    result_tokens: Span = Span(60, 420)
    action_tokens: Span = Span(20, 90)
    rollback_chance: float = 0.2
    documents: int = 24
    document_tokens: Span = Span(800, 1800)
    summary_tokens: Span = Span(20, 60)
    abort_chance: float = 0.04
    running: int = 4
    vocabulary: int = 100_000

    def __post_init__(self) -> None:
        counts = ("system_prompts", "system_tokens", "tool_tokens", "running", "vocabulary")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("chats", "chat_turns", "agents", "agent_steps", "documents"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("rollback_chance", "abort_chance"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        if self.vocabulary > 1 << 31:
            raise ValueError(f"vocabulary must be at most 2^31, got {self.vocabulary}")


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request: int32, C-contiguous prompt and the ids that the model will have generated.

    `number` counts requests from 0 in the order of admission. The arrays are read-only.
    """

    number: int
    session: str
    kind: Kind
    prompt: Int32Array
    output: Int32Array


@dataclass(frozen=True, slots=True)
class Operation:
    """What happens next: a request is admitted, finishes, or is aborted halfway through."""

    action: Action
    request: WorkloadRequest


# A turn before it gets its number: session, prompt, output.
_Turn: TypeAlias = tuple[Int32Array, Int32Array]


def generate(random: np.random.Generator, sizes: WorkloadSizes) -> Iterator[Operation]:
    """Yield the operations of the whole workload; nothing but `random` is changed.

    Every admitted request is finished or aborted before the end. Cost: O(tokens yielded).
    """
    waiting = _sessions(random, sizes)
    open_requests: list[tuple[WorkloadRequest, Iterator[_Turn]]] = []
    number = 0
    while waiting or open_requests:
        if waiting and len(open_requests) < sizes.running:
            name, kind, turns = waiting.pop(int(random.integers(len(waiting))))
            turn = next(turns, None)
            if turn is None:
                continue
            request = WorkloadRequest(number, name, kind, _frozen(turn[0]), _frozen(turn[1]))
            number += 1
            open_requests.append((request, turns))
            yield Operation("admit", request)
        else:
            request, turns = open_requests.pop(int(random.integers(len(open_requests))))
            aborted = random.random() < sizes.abort_chance
            yield Operation("abort" if aborted else "finish", request)
            waiting.append((request.session, request.kind, turns))


def _sessions(
    random: np.random.Generator, sizes: WorkloadSizes
) -> list[tuple[str, Kind, Iterator[_Turn]]]:
    systems = [_ids(random, sizes, sizes.system_tokens) for _ in range(sizes.system_prompts)]
    tools = _ids(random, sizes, sizes.tool_tokens)
    sessions: list[tuple[str, Kind, Iterator[_Turn]]] = []
    for index in range(sizes.chats):
        # The first system prompt is the popular one, as the first of any product is.
        system = systems[min(int(random.geometric(0.6)), len(systems)) - 1]
        sessions.append((f"chat {index}", "chat", _chat(random, sizes, system)))
    for index in range(sizes.agents):
        sessions.append((f"agent {index}", "agent", _agent(random, sizes, tools)))
    # One session scans all documents one after the other, between everything else.
    sessions.append(("scan", "scan", _scan(random, sizes)))
    return sessions


def _chat(random: np.random.Generator, sizes: WorkloadSizes, system: Int32Array) -> Iterator[_Turn]:
    history = system
    for _ in range(sizes.chat_turns):
        prompt = np.concatenate((history, _some(random, sizes, sizes.question_tokens)))
        answer = _some(random, sizes, sizes.answer_tokens)
        yield prompt, answer
        history = np.concatenate((prompt, answer))


def _agent(random: np.random.Generator, sizes: WorkloadSizes, tools: Int32Array) -> Iterator[_Turn]:
    steps = [np.concatenate((tools, _some(random, sizes, sizes.task_tokens)))]
    for _ in range(sizes.agent_steps):
        prompt = steps[-1]
        action = _some(random, sizes, sizes.action_tokens)
        yield prompt, action
        if len(steps) > 1 and random.random() < sizes.rollback_chance:
            # Mostly one step back, seldom far: what agents do when a tool call fails.
            back = min(int(random.geometric(0.5)), len(steps) - 1)
            del steps[-back:]
        result = _some(random, sizes, sizes.result_tokens)
        steps.append(np.concatenate((steps[-1], action, result)))


def _scan(random: np.random.Generator, sizes: WorkloadSizes) -> Iterator[_Turn]:
    for _ in range(sizes.documents):
        document = _some(random, sizes, sizes.document_tokens)
        yield document, _some(random, sizes, sizes.summary_tokens)


def _some(random: np.random.Generator, sizes: WorkloadSizes, span: Span) -> Int32Array:
    return _ids(random, sizes, int(random.integers(span.low, span.high + 1)))


def _ids(random: np.random.Generator, sizes: WorkloadSizes, length: int) -> Int32Array:
    return random.integers(sizes.vocabulary, size=length, dtype=np.int32)


def _frozen(tokens: Int32Array) -> Int32Array:
    tokens.flags.writeable = False
    return tokens
