"""What the control socket answers, over a server: JSON in, JSON out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from radix.keys import as_tokens, check_range
from radix.service.choosing import anything, chosen_of
from radix.service.control import Answer
from radix.service.explaining import Asked, explain_stores
from radix.service.purge import purge_service
from radix.service.server import Server

_TIMEOUT_S = 60.0


def answers_of(server: Server) -> dict[str, Answer]:
    """The questions by path. Each is asked by a thread that is not the loop's."""

    def purge(asked: Mapping[str, Any]) -> dict[str, Any]:
        chosen = chosen_of(_text(asked, "tenant"), _text(asked, "namespace"))
        return asdict(purge_service(server, chosen))

    def explain(asked: Mapping[str, Any]) -> dict[str, Any]:
        tenant, namespace = _text(asked, "tenant"), _text(asked, "namespace")
        named = tenant is not None or namespace is not None
        chosen = chosen_of(tenant, namespace) if named else anything()
        question = asked_of(asked)

        def look() -> list[dict[str, Any]]:
            stores = server.context.stores()
            return [asdict(reach) for reach in explain_stores(stores, question, chosen)]

        return {"reaches": server.ask(look, _TIMEOUT_S)}

    return {"/purge": purge, "/explain": explain}


def asked_of(asked: Mapping[str, Any]) -> Asked:
    """The prompt or the keys of a question. ``ValueError`` for neither, or what is none."""
    if (asked.get("tokens") is None) == (asked.get("keys") is None):
        raise ValueError("give either tokens or keys")
    if asked.get("tokens") is not None:
        tokens = as_tokens(asked["tokens"])
        check_range(tokens)
        return Asked(tokens, None)
    words = asked["keys"]
    if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
        raise ValueError("keys must be a list of keys in hexadecimal")
    raw = [bytes.fromhex(word) for word in words]
    if len({len(key) for key in raw}) != 1 or not raw[0]:
        raise ValueError("keys must all have one length")
    return Asked(None, np.frombuffer(b"".join(raw), np.uint8).reshape(len(raw), -1))


def _text(asked: Mapping[str, Any], name: str) -> str | None:
    value = asked.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} must be a text, not {value!r:.80}")
    return value
