"""Prompts for an engine behind an address: each is posted with one token to sample, several at
once, so that the engine computes them and its cache keeps them.

Kept here: an answer that says "later" is asked for again, a little later each time; whatever else
fails is told of its prompt, and the others go on.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from radix.commands.prompts import ListedPrompt
from radix.options import OptionError

LATER = (429, 503)
MOST_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Posted:
    """What came of one prompt: `what` is why it failed, empty where it did not; `is_gone`: nobody
    answered. `prompt_tokens` and `cached_tokens` are what the engine said, 0 where it says nothing.
    """

    prompt: ListedPrompt
    what: str
    is_gone: bool
    prompt_tokens: int
    cached_tokens: int


class Engine:
    """An endpoint as OpenAI's: `/completions` for texts and tokens, `/chat/completions` for
    messages. `post_all` posts a list.
    """

    def __init__(
        self, url: str, model: str, *, key: str | None, timeout_s: float, retries: int
    ) -> None:
        """Connect to nothing yet.

        Args:
            url: up to the version, as http://127.0.0.1:8000/v1.
            key: sent as a bearer's, if any.
            timeout_s: for one answer.
            retries: how often a prompt is asked again where the engine is busy or gone.

        Raises:
            OptionError: the address is none.
        """
        parts = urllib.parse.urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            raise OptionError("--url", f"{url!r} has no such port") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OptionError("--url", f"expected http://HOST:PORT/v1, got {url!r}")
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, port
        self._path = parts.path.rstrip("/")
        self._model, self._timeout_s, self._retries = model, timeout_s, retries
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._links = threading.local()

    def post_all(self, prompts: Sequence[ListedPrompt], concurrency: int) -> Iterator[Posted]:
        """Post prompts, so many at once; what came of each, as it comes. Nothing new is begun once
        twice as many in a row found nobody: the engine is gone. Cost: the engine's.
        """
        left, gone, most = iter(prompts), 0, 2 * concurrency
        with ThreadPoolExecutor(concurrency) as pool:
            under_way: set[Future[Posted]] = set()
            try:
                while True:
                    while len(under_way) < concurrency and gone < most:
                        prompt = next(left, None)
                        if prompt is None:
                            break
                        under_way.add(pool.submit(self._post, prompt))
                    if not under_way:
                        return
                    done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                    for each in done:
                        gone = gone + 1 if each.result().is_gone else 0
                        yield each.result()
            finally:
                for each in under_way:
                    each.cancel()

    def _post(self, prompt: ListedPrompt) -> Posted:
        body: dict[str, Any] = {"model": self._model, "max_tokens": 1, "temperature": 0}
        chat = prompt.kind == "messages"
        body |= {"messages" if chat else "prompt": prompt.value}
        path = f"{self._path}/{'chat/completions' if chat else 'completions'}"
        data, what, is_gone = json.dumps(body).encode(), "", False
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(min(MOST_WAIT_S, 0.25 * 2 ** (attempt - 1)))
            try:
                status, answer = self._ask(path, data)
            except (OSError, http.client.HTTPException) as error:
                what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                is_gone = True
                self._hang_up()
                continue
            is_gone = False
            if status == 200:
                return Posted(prompt, "", False, *_counts(answer))
            what = f"HTTP {status}: {_reason(answer)}"
            if status not in LATER:
                break
        return Posted(prompt, what, is_gone, 0, 0)

    def _ask(self, path: str, data: bytes) -> tuple[int, bytes]:
        """Post on this thread's own connection, which stays open."""
        link: http.client.HTTPConnection | None = getattr(self._links, "link", None)
        if link is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            link = self._links.link = kind(self._host, self._port, timeout=self._timeout_s)
        link.request("POST", path, data, self._headers)
        answer = link.getresponse()
        return answer.status, answer.read()

    def _hang_up(self) -> None:
        link = getattr(self._links, "link", None)
        if link is not None:
            link.close()
            self._links.link = None


def _counts(answer: bytes) -> tuple[int, int]:
    """Tokens of the prompt, and those of them that the engine's cache had, as far as it says."""
    try:
        usage = json.loads(answer)["usage"]
        details = usage.get("prompt_tokens_details") or {}
        return int(usage["prompt_tokens"]), int(details.get("cached_tokens") or 0)
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0, 0


def _reason(answer: bytes) -> str:
    """What an answer says of its failure, in a line."""
    try:
        told = json.loads(answer)
        error = told.get("error", told) if isinstance(told, Mapping) else told
        text = str(error.get("message", error) if isinstance(error, Mapping) else error)
    except ValueError:
        text = answer.decode("utf-8", "replace")
    return " ".join(text.split())[:200] or "no reason given"
