"""Lists of prompts as people keep them: a JSON object a line, or plain text, a prompt a line.

Kept here: a list is read whole before anything is done with it, and a line that is no prompt is
refused by its number, with what was expected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from radix.options import OptionError

MOST_ID = 1 << 31
Kind: TypeAlias = Literal["text", "tokens", "messages"]


@dataclass(frozen=True, slots=True)
class ListedPrompt:
    """A prompt and the line on which it stands: a text, token ids, or the messages of a chat."""

    line: int
    kind: Kind
    value: Any

    @property
    def digest(self) -> str:
        """What tells it from other prompts, 32 hexadecimal digits. Cost: its length."""
        told = json.dumps([self.kind, self.value], separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:32]


def read_prompts(text: str, name: str) -> list[ListedPrompt]:
    """Read a list; empty lines count for nothing. Cost: the text.

    A list whose first line begins with a brace is one of JSON objects: `prompt` (a text or token
    ids), `tokens` (token ids) or `messages` (each with `role` and `content`); what else stands in
    them is passed over.

    Raises:
        OptionError: a line is no prompt, named by the file's name and its number; or none is.
    """
    lines = [(at, line) for at, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise OptionError(name, "no prompt in it")
    if not lines[0][1].lstrip().startswith("{"):
        return [ListedPrompt(at, "text", line) for at, line in lines]
    return list(_objects(lines, name))


def _objects(lines: list[tuple[int, str]], name: str) -> Iterator[ListedPrompt]:
    for at, line in lines:
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            raise OptionError(f"{name}:{at}", "no JSON object") from None
        if not isinstance(told, dict):
            raise OptionError(f"{name}:{at}", "no JSON object")
        named = [key for key in ("prompt", "tokens", "messages") if key in told]
        if len(named) != 1:
            what = f"expected one of prompt, tokens and messages, found {len(named)}"
            raise OptionError(f"{name}:{at}", what)
        value = told[named[0]]
        if named[0] == "messages":
            yield ListedPrompt(at, "messages", _messages(value, f"{name}:{at}"))
        elif isinstance(value, str) and value and named[0] == "prompt":
            yield ListedPrompt(at, "text", value)
        else:
            yield ListedPrompt(at, "tokens", _tokens(value, f"{name}:{at}", named[0]))


def _tokens(value: Any, where: str, field: str) -> list[int]:
    if not isinstance(value, list) or not value:
        kinds = "a text or token ids" if field == "prompt" else "token ids"
        raise OptionError(where, f"{field}: expected {kinds}, at least one")
    for each in value:
        if type(each) is not int or not 0 <= each < MOST_ID:
            raise OptionError(
                where, f"{field}: {json.dumps(each)[:40]} is no token id in [0, 2^31)"
            )
    return value


def _messages(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise OptionError(where, "messages: expected a list of them, at least one")
    for number, each in enumerate(value):
        if not isinstance(each, dict) or not isinstance(each.get("role"), str):
            raise OptionError(where, f"messages[{number}]: expected an object with a role")
        if "content" not in each:
            raise OptionError(where, f"messages[{number}]: expected its content")
    return value


def read_list(path: Path, name: str) -> list[ListedPrompt]:
    """Read a list from a file. Raises ``OptionError``, ``OSError``."""
    try:
        return read_prompts(path.read_text(encoding="utf-8"), name)
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise OptionError(f"{name}:{line}", "not UTF-8") from None
