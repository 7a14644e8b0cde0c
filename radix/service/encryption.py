"""TLS of the service's TCP socket, by the standard library: both sides show a certificate, and what
the client's is signed for says which tenant it is. The loop's half: a handshake that waits for
nobody.
"""

from __future__ import annotations

import ssl
from typing import Any

from radix.service.config import Tls


def server_context(files: Tls) -> ssl.SSLContext:
    """What the server takes connections with: certificates of its authority's clients alone, TLS
    1.2 or later. Raises ``OSError`` (``ssl.SSLError``) for files that do not fit.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.client_authority)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(authority: str, certificate: str, key: str) -> ssl.SSLContext:
    """What a client connects with (``tls`` of ``Client``): it believes servers that ``authority``
    signed and that have the name that it connects to, and shows its own certificate. Raises as
    above.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(authority)
    context.load_cert_chain(certificate, key)
    return context


def shaken(link: ssl.SSLSocket) -> bool:
    """Takes a handshake further: whether it is through. Never blocks. Raises ``OSError`` where it
    failed.
    """
    try:
        link.do_handshake()
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return False
    return True


def name_of(link: ssl.SSLSocket) -> str | None:
    """The common name of the certificate that the other side showed, which was verified; None where
    it has not exactly one.
    """
    shown: dict[str, Any] = dict(link.getpeercert() or {})
    names = [v for part in shown.get("subject", ()) for kind, v in part if kind == "commonName"]
    return str(names[0]) if len(names) == 1 else None
