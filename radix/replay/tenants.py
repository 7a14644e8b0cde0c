"""Whose the requests of a replayed trace are: as the trace says, or sessions dealt out by hash.

Kept here: a session is of one tenant, its agents included, and of the same one on every machine; an
option is refused by name where the trace lacks what it needs.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from radix.options import OptionError
from radix.replay.options import parse_positive
from radix.replay.traces import Trace
from radix.tenants import Tenant, Tenants

OPTION = "--tenants"
AS_TOLD = "trace"
MOST = 100_000


def with_tenants(trace: Trace, text: str) -> Trace:
    """Return the trace with what was typed as its tenants: "trace", as it says itself, or a number,
    among which its sessions are dealt out by hash, as "tenant-0" to "tenant-N". Cost: the requests.

    Raises:
        OptionError: neither of these, or the trace does not say what is needed.
    """
    if text == AS_TOLD:
        if not trace.tenants:
            raise OptionError(OPTION, f"{trace.name} does not say whose a request is")
        return trace
    count = parse_positive(OPTION, text)
    if count > MOST:
        raise OptionError(OPTION, f"{count} tenants are more than {MOST}")
    sessions = trace.sessions.tolist()
    if not sessions or min(sessions) < 0:
        raise OptionError(OPTION, f"{trace.name} does not say which session a request is of")
    dealt = {number: f"tenant-{_digest(number) % count}" for number in set(sessions)}
    return replace(trace, tenants=tuple(dealt[number] for number in sessions))


def _digest(number: int) -> int:
    return int.from_bytes(hashlib.blake2b(b"%d" % number, digest_size=8).digest(), "little")


def weights_of(trace: Trace, text: str | None) -> Tenants:
    """Return the terms that were typed as "a=3,b=0.5"; who is not named has weight 1.

    Raises:
        OptionError: an entry is none, or of no tenant of the trace.
    """
    known: dict[str, Tenant] = {}
    for entry in filter(None, (text or "").split(",")):
        name, _, weight = entry.strip().rpartition("=")
        if name not in trace.tenants:
            raise OptionError("--weights", f"{entry!r}: no request is of a tenant {name!r}")
        try:
            known[name] = Tenant(float(weight))
        except ValueError as error:
            raise OptionError("--weights", f"{entry!r}: {error}") from None
    return Tenants(known)
