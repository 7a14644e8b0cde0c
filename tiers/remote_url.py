"""Which distributed backend an URL names. A client is imported only where its URL is given, so that
one extra is enough. Keeps no invariant.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from tiers.remote_backend import Backend


def backend_of(url: str) -> Backend:
    """The backend that an URL names: ``redis://[user:password@]host:port[,host:port...]`` (rediss
    for TLS; a cluster or a single server), ``mooncake://master:port?segment_bytes=N``.

    Nothing is connected yet. Raises ``ValueError`` naming what was expected, ``ImportError`` where
    the extra of that name is not installed.
    """
    scheme = urlsplit(url).scheme if isinstance(url, str) else ""
    if scheme in ("redis", "rediss"):
        from tiers.remote_redis import RedisBackend

        return RedisBackend(url)
    if scheme == "mooncake":
        from tiers.remote_mooncake import MooncakeBackend

        return MooncakeBackend.of(url)
    raise ValueError(f"url must begin with redis://, rediss:// or mooncake://, not {url!r}")
