"""A backend seen from a test: every call is counted, every name that was put is known, and values
can be changed behind the tier's back, as a medium or another program might.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from tiers.remote import Backend
from tiers.remote_backend import Put


class Watched:
    """Passes on to ``inner``. ``calls``: how often each was made; ``names``: that were put."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self.names: list[str] = []
        self._room = bytearray(1 << 16)
        self._mine = memoryview(self._room)

    def change(self, name: str, how: Callable[[bytes], bytes]) -> None:
        """Puts another value in the place of one."""
        (size,) = self.inner.get([name], [self._mine], 10.0)
        assert size > 0, f"{name} is not there"
        value = how(bytes(self._mine[:size]))
        assert self.inner.replace(name, value, 10.0, absent=False) == value

    def there(self, name: str) -> bool:
        """Whether a name has a value."""
        return self.inner.exists([name], 10.0)[0]

    @property
    def url(self) -> str:
        return self.inner.url

    def open(self, timeout_s: float) -> None:
        self.calls["open"] += 1
        self.inner.open(timeout_s)

    def register(self, memory: memoryview) -> None:
        if not self.calls["register"]:
            self.inner.register(self._mine)
        self.calls["register"] += 1
        self.inner.register(memory)

    def put(
        self, names: Sequence[str], values: Sequence[memoryview], timeout_s: float
    ) -> list[Put]:
        self.calls["put"] += 1
        self.names += names
        return self.inner.put(names, values, timeout_s)

    def get(self, names: Sequence[str], into: Sequence[memoryview], timeout_s: float) -> list[int]:
        self.calls["get"] += 1
        return self.inner.get(names, into, timeout_s)

    def exists(self, names: Sequence[str], timeout_s: float) -> list[bool]:
        self.calls["exists"] += 1
        return self.inner.exists(names, timeout_s)

    def remove(self, names: Sequence[str], timeout_s: float) -> None:
        self.calls["remove"] += 1
        self.inner.remove(names, timeout_s)

    def replace(self, name: str, value: bytes, timeout_s: float, *, absent: bool) -> bytes | None:
        self.calls["replace"] += 1
        return self.inner.replace(name, value, timeout_s, absent=absent)

    def ping(self, timeout_s: float) -> None:
        self.calls["ping"] += 1
        self.inner.ping(timeout_s)

    def close(self) -> None:
        self.calls["close"] += 1
        self.inner.close()
