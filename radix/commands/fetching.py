"""Prompts that a service's disk holds, brought up into its memory: each is leased, which loads what
lies below, and let go, which makes it the most recently used; or kept there for a time.

Kept here: what the service is asked for are the groups that its own directories describe, so that
nothing has to be said twice; nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from radix.options import OptionError

if TYPE_CHECKING:
    from radix.groups import Group
    from radix.keys import Namespace
    from radix.service.client import Client


def namespace_of(text: str | None) -> Namespace | None:
    """The namespace of a model's name, or of `FIELD=VALUE,...`; None where none is given.

    Raises:
        OptionError: a field is none, or stands twice.
    """
    from radix.keys import Namespace
    from radix.service.choosing import chosen_of

    if text is None:
        return None
    chosen = chosen_of(None, text)
    return Namespace(
        model=chosen.model or "",
        revision=chosen.revision or "",
        adapter=chosen.adapter or "",
        adapter_version=chosen.adapter_version or "",
    )


def groups_in(data: Path) -> list[tuple[Group, ...]]:
    """The groups of every store that has a directory there, each set once. Changes nothing.

    Raises:
        OptionError: there is no directory of a disk tier, or none says what its blocks are.
    """
    from tiers.inspection import DiskReader, directories_in

    found: list[tuple[Group, ...]] = []
    for directory in directories_in(data) if data.is_dir() else ():
        with DiskReader(directory) as reader:
            described = reader.description
        if described is not None and described.groups not in found:
            found.append(described.groups)
    if not found:
        raise OptionError("--data", f"{data} holds no directory of a disk tier with a description")
    return found


class Service:
    """A service that runs, asked for prompts. `fetch`. As a context it is let go of at the end."""

    def __init__(
        self,
        socket: str,
        groups: Sequence[Sequence[Group]],
        page_tokens: int,
        *,
        tenant: str,
        namespace: Namespace | None,
        keep_s: float | None,
    ) -> None:
        """Connect to nothing yet.

        Args:
            groups: of each of its stores.
            page_tokens: of the prompts' pages.
            keep_s: how long each prompt is to stay; None: as long as it is used.
        """
        self._socket, self._groups, self._page_tokens = socket, groups, page_tokens
        self._tenant, self._namespace, self._keep_s = tenant, namespace, keep_s
        self._clients: list[Client] = []
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        """Raises `OptionError` where no service answers."""
        from radix.service.calls import ServiceGoneError
        from radix.service.client import Client

        for groups in self._groups:
            client = Client(
                self._socket, groups, page_tokens=self._page_tokens, tenant=self._tenant
            )
            self._clients.append(self._closing.enter_context(client))
            try:
                client.stat(namespace=self._namespace)
            except ServiceGoneError as error:
                self._closing.close()
                raise OptionError("--socket", f"no service at {self._socket}: {error}") from None
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()

    def fetch(self, tokens: Sequence[int]) -> int:
        """Bring what is there of a prompt up; how many of its tokens lie in memory then, over the
        store that has most. Blocks until they do. Raises what the client raises.
        """
        ids, most = np.array(tokens, np.int32), 0
        for client in self._clients:
            with client.lease(ids, namespace=self._namespace, leave=0) as lease:
                most = max(most, lease.pages * self._page_tokens)
                if lease.pages and self._keep_s is not None:
                    held = ids[: lease.pages * self._page_tokens]
                    client.keep(tokens=held, seconds=self._keep_s, namespace=self._namespace)
        return most
