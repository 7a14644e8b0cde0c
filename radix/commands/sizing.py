"""How large the tiers of a service should be for a model, a context and so many sessions: plain
arithmetic over the bytes that the model keeps, each number shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from radix.replay.models import Model

CHECKPOINTS = 2  # states kept a session: where it branched off, and its last turn's end
HOST_SHARE = 0.75  # of what is available: the rest is for the engine, the index and the kernel
DISK_SHARE = 0.9  # of what is free
INDEX_BYTES = 300  # a page in the index of a service (docs/scale.md): a key of 32 bytes, two tiers
PAGE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes for ``sessions`` of ``context_tokens``. ``session_bytes``: of one at its full length,
    ``token_bytes`` of it for each token, ``fixed_bytes`` whatever its length (windows and states);
    ``needed_bytes`` of all. ``host_bytes``, ``disk_bytes``: what to give; ``host_sessions``,
    ``disk_sessions``: how many fit; ``index_bytes``: memory of the index of both.
    """

    model: str
    context_tokens: int
    sessions: int
    token_bytes: int
    fixed_bytes: int
    session_bytes: int
    needed_bytes: int
    host_bytes: int
    disk_bytes: int
    host_sessions: int
    disk_sessions: int
    index_bytes: int


def plan_sizes(
    model: Model, context_tokens: int, sessions: int, memory_bytes: int, disk_bytes: int
) -> Plan:
    """Plans tiers within what a machine has: ``memory_bytes`` available, ``disk_bytes`` free (0 for
    no disk). The host takes all sessions if it can; the disk takes all, for a restart and for those
    that the host has no room for.
    """
    fixed = 0
    for kept in model.sets:
        rule, tokens = kept.retention.rule, kept.retention.tokens
        if kept.per_sequence:
            fixed += CHECKPOINTS * kept.unit_bytes
        elif rule != "full":
            fixed += min(tokens, context_tokens) * kept.unit_bytes
    session = model.token_bytes * context_tokens + fixed
    needed = session * sessions
    host = min(_up(needed), _down(int(memory_bytes * HOST_SHARE)))
    disk = min(_up(needed + needed // 10), _down(int(disk_bytes * DISK_SHARE)))
    pages = -(-context_tokens // PAGE_TOKENS) * INDEX_BYTES
    held = min(sessions, host // session + disk // session)
    return Plan(
        model=model.name,
        context_tokens=context_tokens,
        sessions=sessions,
        token_bytes=model.token_bytes,
        fixed_bytes=fixed,
        session_bytes=session,
        needed_bytes=needed,
        host_bytes=host,
        disk_bytes=disk,
        host_sessions=min(sessions, host // session),
        disk_sessions=min(sessions, disk // session),
        index_bytes=held * pages,
    )


def _down(count_bytes: int) -> int:
    """Rounded down to whole MiB."""
    return count_bytes >> 20 << 20


def _up(count_bytes: int) -> int:
    """Rounded up to whole MiB."""
    return _down(count_bytes + (1 << 20) - 1)
