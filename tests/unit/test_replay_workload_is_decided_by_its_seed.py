"""The demo's traffic is the same for the same seed, and is a sequence that an engine could send."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from radix.replay.workload import Operation, Span, WorkloadSizes, generate

SMALL = WorkloadSizes(
    chats=5,
    chat_turns=3,
    system_tokens=20,
    agents=3,
    agent_steps=10,
    tool_tokens=30,
    documents=4,
    document_tokens=Span(30, 60),
    abort_chance=0.1,
    rollback_chance=0.4,
    running=3,
    vocabulary=50,
)


def operations(seed: int, sizes: WorkloadSizes = SMALL) -> list[Operation]:
    return list(generate(np.random.default_rng(seed), sizes))


def digest(found: list[Operation]) -> str:
    state = hashlib.sha256()
    for operation in found:
        request = operation.request
        state.update(f"{operation.action} {request.number} {request.session} ".encode())
        state.update(request.prompt.tobytes() + b"/" + request.output.tobytes() + b";")
    return state.hexdigest()


def test_same_seed_gives_the_same_operations_and_another_seed_does_not() -> None:
    assert digest(operations(7)) == digest(operations(7))
    assert digest(operations(7)) != digest(operations(8))


@pytest.mark.parametrize("seed", range(5))
def test_every_request_ends_once_and_no_more_run_than_allowed(seed: int) -> None:
    running: dict[int, str] = {}
    numbers = []
    most = 0
    for operation in operations(seed):
        request = operation.request
        if operation.action == "admit":
            assert request.session not in running.values(), "a session waits for its last request"
            numbers.append(request.number)
            running[request.number] = request.session
        else:
            del running[request.number]
        most = max(most, len(running))
    assert not running
    assert numbers == list(range(len(numbers)))
    assert most == SMALL.running


def test_counts_are_those_of_the_sizes() -> None:
    admitted = Counter(op.request.kind for op in operations(0) if op.action == "admit")
    assert admitted == {"chat": 5 * 3, "agent": 3 * 10, "scan": 4}


def test_arrays_are_int32_contiguous_within_the_vocabulary_and_read_only() -> None:
    for operation in operations(1):
        for tokens in (operation.request.prompt, operation.request.output):
            assert tokens.dtype == np.int32
            assert tokens.flags.c_contiguous
            assert not tokens.flags.writeable
            assert len(tokens) > 0
            assert 0 <= tokens.min() <= tokens.max() < SMALL.vocabulary


def test_chats_continue_their_history_and_share_system_prompts() -> None:
    prompts: dict[str, list[list[int]]] = {}
    history: dict[str, list[int]] = {}
    for operation in operations(2):
        request = operation.request
        if operation.action != "admit" or request.kind != "chat":
            continue
        prompt = request.prompt.tolist()
        before = history.get(request.session, [])
        assert prompt[: len(before)] == before
        assert len(prompt) > len(before)
        history[request.session] = prompt + request.output.tolist()
        prompts.setdefault(request.session, []).append(prompt)
    systems = {tuple(turns[0][: SMALL.system_tokens]) for turns in prompts.values()}
    assert 1 <= len(systems) < len(prompts)


def test_agents_share_their_tools_and_roll_back_to_earlier_steps() -> None:
    prompts: dict[str, list[list[int]]] = {}
    for operation in operations(3):
        if operation.action == "admit" and operation.request.kind == "agent":
            session = prompts.setdefault(operation.request.session, [])
            session.append(operation.request.prompt.tolist())
    tools = {tuple(steps[0][: SMALL.tool_tokens]) for steps in prompts.values()}
    assert len(tools) == 1
    rolled_back = 0
    for steps in prompts.values():
        for before, after in pairwise(steps):
            if after[: len(before)] != before:
                rolled_back += 1
                shared = next(
                    i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b
                )
                assert shared >= SMALL.tool_tokens
    assert rolled_back > 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("running", 0),
        ("vocabulary", 0),
        ("vocabulary", 2**31 + 1),
        ("chats", -1),
        ("abort_chance", 1.5),
        ("rollback_chance", -0.1),
        ("tool_tokens", 0),
    ],
)
def test_sizes_that_mean_nothing_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        replace(SMALL, **{name: value})
    with pytest.raises(ValueError, match="1 <= low <= high"):
        Span(5, 4)


def test_nothing_asked_for_gives_nothing() -> None:
    assert operations(0, replace(SMALL, chats=0, agents=0, documents=0)) == []
