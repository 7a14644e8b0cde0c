"""Who owns each slot: the tree, a request, a transfer or the quarantine, and nobody twice (I7, I8).
Each layer checks its own books; here they are held against each other.
"""

from __future__ import annotations

from collections.abc import Iterable

from radix.errors import InvariantError
from radix.events import RequestState
from radix.lifecycle import LIVE
from radix.plan import Cursor
from radix.requests import Requests
from radix.residency import Residency
from radix.transfers import Transfers
from radix.tree import NO_SLOT

Owned = dict[int, str]  # slot -> its owner


def check_slots(
    residency: Residency, transfers: Transfers, requests: Requests, roots: Iterable[int]
) -> None:
    """``InvariantError`` for a slot with two owners, or one that nobody owns. Cost: everything."""
    owned = _of_the_tree(residency, roots)
    for job in transfers.jobs.values():
        move = job.move
        if move.target > 0 or (move.target == 0 and (job.late or not requests.placed)):
            slots = job.lower_slots if job.storing else job.upper_slots
            _claim(owned[move.target, move.group], slots.tolist(), f"job {job.number}")
    if requests.placed:
        for work in requests.works.values():
            holds = work.state in LIVE or work.state is RequestState.GENERATION_DONE
            for group in range(len(residency.groups) if holds else 0):
                private = work.held[group].private().tolist()
                _claim(owned[0, group], private, f"request {work.hop}")
        for group in range(len(residency.groups)):
            _claim(owned[0, group], requests.stages.slots(group), "drafts")
        for group, fenced in enumerate(requests.fenced):
            _claim(owned[0, group], fenced, "the quarantine")
    for tier_number, group, slot in transfers.fenced:
        _claim(owned[tier_number, group], [slot], "the quarantine of what is read")
    _ends_of_jobs(transfers, requests, owned)
    for number, tier in enumerate(residency.tiers):
        used = tier.usage().used_blocks
        for group, spec in enumerate(residency.groups):
            known = len(owned[number, group])
            if used[group] != known:
                kind = "leaked" if used[group] > known else "owned but free"
                raise InvariantError(
                    "I8",
                    f"tier {tier.name!r}, group {spec.name!r}: {used[group]} slots in use, "
                    f"{known} have an owner: {abs(used[group] - known)} {kind}",
                )


def _ends_of_jobs(
    transfers: Transfers, requests: Requests, owned: dict[tuple[int, int], Owned]
) -> None:
    """What a job reads stands in the tree or in quarantine, what it writes above is private."""
    for job in transfers.jobs.values():
        move, who = job.move, f"job {job.number}"
        source = job.upper_slots if job.storing else job.lower_slots
        if move.source >= 0:
            for slot in source.tolist():
                owner = owned[move.source, move.group].get(slot, "nobody")
                if not owner.startswith("the "):
                    raise InvariantError("I22", f"{who} reads slot {slot}, which is of {owner}")
        if move.target == 0 and requests.placed and not job.late:
            for slot in job.upper_slots.tolist():
                owner = owned[0, move.group].get(slot, "nobody")
                if owner != f"request {job.owner}":
                    raise InvariantError("I22", f"{who} writes slot {slot}, which is of {owner}")


def _of_the_tree(residency: Residency, roots: Iterable[int]) -> dict[tuple[int, int], Owned]:
    tree = residency.tree
    owned: dict[tuple[int, int], Owned] = {
        (tier, group): {}
        for tier in range(len(residency.tiers))
        for group in range(len(residency.groups))
    }
    for root in roots:
        for node in tree.nodes(root):
            at = Cursor(root, node.node, node.start + node.pages)
            for (tier, group), slots in owned.items():
                lo, hi = tree.interval(node.node, tree.column(group, tier))
                if hi > lo:
                    here = residency.slots(at, group, tier, node.start + lo, hi - lo)
                    here = here[here != NO_SLOT]
                    _claim(slots, here.tolist(), f"the tree at page {node.start + lo}")
    return owned


def _claim(owned: Owned, slots: Iterable[int], owner: str) -> None:
    for slot in slots:
        if slot in owned:
            raise InvariantError("I7", f"slot {slot} belongs to {owned[slot]} and to {owner}")
        owned[slot] = owner
