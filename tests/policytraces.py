"""Small traces that eviction policies tell apart; the seed decides them all. Each request is a
chain of block ids, and an id always follows the same one, as in a trace of real requests.

``chats``: conversations of a few turns over two shared system prompts, many open at a time, most of
them over after one turn. ``agents``: few long contexts that grow at every turn, more than fit, each
used again soon. ``scan``: prompts that nobody asks again run through a handful that everybody does.
``sessions``: sessions whose tools take a second or a minute, with the time of each request.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Requests = list[list[int]]


class _Ids:
    def __init__(self) -> None:
        self._given = 0

    def take(self, count: int) -> list[int]:
        first = self._given
        self._given += count
        return list(range(first, self._given))


def chats(seed: int, requests: int = 900) -> Requests:
    """Conversations that go on with a chance that falls with the time since the last turn."""
    random, ids, done = np.random.default_rng(seed), _Ids(), []
    systems = [ids.take(2), ids.take(3)]
    talks: list[list[int]] = []
    while len(done) < requests:
        if talks and random.random() < 0.55:
            age = min(int(random.geometric(0.12)), len(talks))
            talk = talks.pop(-age)
        else:
            talk = list(systems[int(random.random() < 0.3)])
        if len(talk) < 4 or random.random() < 0.85:  # else the same is asked again
            talk += ids.take(int(random.integers(1, 6)))
        talks.append(talk)
        done.append(list(talk))
    return done


def agents(seed: int, requests: int = 900) -> Requests:
    """A dozen contexts in turns, not quite in order; one ends now and then and another begins."""
    random, ids, done = np.random.default_rng(seed), _Ids(), []
    system = ids.take(4)
    running = [system + ids.take(int(random.integers(4, 10))) for _ in range(12)]
    while len(done) < requests:
        at = int(min(random.geometric(0.4), len(running))) - 1
        context = running.pop(at) + ids.take(int(random.random() < 0.8))
        done.append(list(context))
        if random.random() < 0.08:
            context = system + ids.take(int(random.integers(4, 10)))
        running.append(context)
    return done


def scan(seed: int, requests: int = 900) -> Requests:
    """One request in three is one of eight prompts, the others are new."""
    random, ids, done = np.random.default_rng(seed), _Ids(), []
    known = [ids.take(int(random.integers(2, 6))) for _ in range(8)]
    for _ in range(requests):
        if random.random() < 0.35:
            done.append(list(known[min(int(random.geometric(0.3)), 8) - 1]))
        else:
            done.append(ids.take(int(random.integers(2, 6))))
    return done


def sessions(seed: int, requests: int = 900) -> list[tuple[int, str, list[int]]]:
    """Milliseconds, a session and its prompt, in order of time. Two sessions in three call tools
    that are quick, the others wait for people; a tenth of the requests are a session's last.
    """
    random, ids, done = np.random.default_rng(seed), _Ids(), []
    system = ids.take(6)
    due: list[tuple[int, int]] = []  # the next request of each session
    contexts: dict[int, list[int]] = {}
    for number in range(20):
        contexts[number] = system + ids.take(int(random.integers(2, 8)))
        due.append((int(random.integers(0, 20_000)), number))
    while len(done) < requests:
        now, number = min(due)
        due.remove((now, number))
        contexts[number] = contexts[number] + ids.take(int(random.integers(0, 3)))
        done.append((now, f"s{number}", contexts[number]))
        think = 1000 if number % 3 else 60_000
        if random.random() < 0.1:
            del contexts[number]
            number, think = max(contexts) + len(done), 5000
            contexts[number] = system + ids.take(int(random.integers(2, 8)))
        due.append((now + 1 + int(random.exponential(think)), number))
    return done


TRACES: dict[str, Callable[[int], Requests]] = {"chats": chats, "agents": agents, "scan": scan}
