"""What OPEN declares: the groups of a store, how its keys are made, and the namespace that a number
of a connection stands for. Everything that a client says is bounded and checked by name here; that
a namespace is of its tenant is written into it here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from radix.errors import UnsupportedError
from radix.groups import Group, Retention, Rule, check_groups, rule_of
from radix.keys import Namespace
from radix.layout import Layout
from radix.service.choosing import Owner
from radix.service.protocol import DIGEST_BYTES, ProtocolError, Status

MOST_GROUPS = 16
MOST_NAME_BYTES = 128
MOST_NAMESPACE_BYTES = 4096
MOST_PAGE_TOKENS = 1 << 16
MOST_BLOCK_BYTES = 1 << 30
_OPEN_KEYS = {"key_bytes", "page_tokens", "groups", "namespace", "pool_bytes"}
_GROUP_KEYS = {
    *("name", "block_bytes", "fingerprint", "retention", "tokens", "extra"),
    *("grid_tokens", "per_sequence", "lookup"),
}


@dataclass(frozen=True, slots=True)
class Signature:
    """What all who share a store must agree on. ``page_tokens`` 0: keys that clients make; else
    keys are chained over pages of so many tokens, and ``rules`` say what a hit needs.
    """

    key_bytes: int
    page_tokens: int
    groups: tuple[Group, ...]
    fingerprints: tuple[bytes, ...]
    rules: tuple[Rule, ...]

    @property
    def text(self) -> str:
        """All of it, the same for the same signature only."""
        groups = ";".join(
            f"{len(group.name)}:{group.name},{group.block_bytes},{mark.hex()},{group.retention},"
            f"{group.grid_tokens},{group.per_sequence},{group.lookup}"
            for group, mark in zip(self.groups, self.fingerprints, strict=True)
        )
        return f"radix-store-1;{self.key_bytes};{self.page_tokens};{groups}"


@dataclass(frozen=True, slots=True)
class Opening:
    """An OPEN that is sound: the store it wants, and the namespace in it, as the client named it.
    ``pool_bytes``: of a store that is new; 0: all that its tenant has left.
    """

    signature: Signature
    namespace: Namespace
    pool_bytes: int


def declared(
    groups: tuple[Group, ...],
    key_bytes: int,
    page_tokens: int,
    namespace: Namespace,
    pool_bytes: int,
) -> dict[str, Any]:
    """What a client puts into OPEN for these groups."""
    return {
        "key_bytes": key_bytes,
        "page_tokens": page_tokens,
        "namespace": namespace.canonical().hex(),
        "pool_bytes": pool_bytes,
        "groups": [
            {
                "name": group.name,
                "block_bytes": group.block_bytes,
                "fingerprint": group.layout.fingerprint.hex(),
                "retention": group.retention.rule,
                "tokens": group.retention.tokens,
                "extra": group.retention.extra,
                "grid_tokens": group.grid_tokens or 0,
                "per_sequence": int(group.per_sequence),
                "lookup": int(group.lookup),
            }
            for group in groups
        ],
    }


def parse_opening(value: Mapping[str, Any], request: int) -> Opening:
    """What a client declares. ``ProtocolError`` (bad request) names what was wrong."""
    try:
        _only("OPEN", value, _OPEN_KEYS)
        key_bytes = _number(value, "key_bytes", 1, 32)
        page_tokens = _number(value, "page_tokens", 0, MOST_PAGE_TOKENS)
        listed = value.get("groups")
        if not isinstance(listed, list) or not 1 <= len(listed) <= MOST_GROUPS:
            raise ValueError(f"groups must be a list of 1 to {MOST_GROUPS}")
        parsed = [_group(each) for each in listed]
        groups = check_groups([group for group, _ in parsed])
        if page_tokens and key_bytes != DIGEST_BYTES:
            raise ValueError(f"keys of pages have {DIGEST_BYTES} bytes, not {key_bytes}")
        rules = _rules(groups, page_tokens) if page_tokens else ()
        marks = tuple(mark for _, mark in parsed)
        signature = Signature(key_bytes, page_tokens, groups, marks, rules)
        raw = bytes.fromhex(_text(value, "namespace", 2 * MOST_NAMESPACE_BYTES))
        pool_bytes = _number(value, "pool_bytes", 0, 1 << 60)
        return Opening(signature, Namespace.parse(raw), pool_bytes)
    except (ValueError, TypeError, UnsupportedError) as error:
        raise ProtocolError(f"OPEN: {error}", Status.BAD_REQUEST, request) from None


def _rules(groups: tuple[Group, ...], page_tokens: int) -> tuple[Rule, ...]:
    rules = tuple(rule_of(group, page_tokens) for group in groups)
    for group, rule in zip(groups, rules, strict=True):
        if not rule.per_position and rule.block_pages != 1:
            raise UnsupportedError(
                f"group {group.name!r}: a block of several pages; the service keeps one a page"
            )
        if not rule.kept:
            raise UnsupportedError(f"group {group.name!r} is scratch: nothing of it is kept")
    if not any(rule.lookup for rule in rules):
        raise ValueError("no group limits a hit")
    return rules


def _group(value: object) -> tuple[Group, bytes]:
    if not isinstance(value, dict):
        raise TypeError("each group must be an object")
    _only("a group", value, _GROUP_KEYS)
    name = _text(value, "name", MOST_NAME_BYTES)
    block_bytes = _number(value, "block_bytes", 1, MOST_BLOCK_BYTES)
    mark = bytes.fromhex(_text(value, "fingerprint", 2 * DIGEST_BYTES))
    if len(mark) != DIGEST_BYTES:
        raise ValueError(f"group {name!r}: fingerprint must have {DIGEST_BYTES} bytes")
    retention = Retention(
        _text(value, "retention", 16),
        _number(value, "tokens", 0, 1 << 31),
        _number(value, "extra", 0, 1 << 20),
    )
    group = Group(
        name,
        Layout.opaque(block_bytes),
        retention,
        _number(value, "grid_tokens", 0, 1 << 31) or None,
        bool(_number(value, "per_sequence", 0, 1)),
        bool(_number(value, "lookup", 0, 1)),
    )
    return group, mark


def owned_by(owner: Owner, namespace: Namespace, signature: Signature) -> Namespace:
    """The namespace under which somebody's blocks are kept: his name and the fingerprints are in
    it, length-prefixed, whatever the client wrote there.
    """
    marks = b"".join(signature.fingerprints)
    return replace(
        namespace,
        salt=owner.salted(namespace.salt),
        layout=len(marks).to_bytes(4, "big") + marks + namespace.layout,
    )


def _only(what: str, value: Mapping[str, Any], known: set[str]) -> None:
    if unknown := sorted(set(value) - known):
        raise ValueError(f"{what} has an unknown field {unknown[0]!r}")


def _number(value: Mapping[str, Any], name: str, least: int, most: int) -> int:
    found = value.get(name)
    if type(found) is not int or not least <= found <= most:
        raise ValueError(f"{name} must be an integer of {least} to {most}, not {found!r}")
    return found


def _text(value: Mapping[str, Any], name: str, most: int) -> str:
    found = value.get(name)
    if not isinstance(found, str) or len(found) > most:
        raise ValueError(f"{name} must be a text of at most {most} characters, not {found!r:.80}")
    return found
