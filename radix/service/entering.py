"""Answers that let a client in: HELLO says who it is, PROVE proves it, OPEN names a store. On the
UNIX socket the kernel says which user is there; over TCP a certificate does, or both sides show
that they know the tenant's secret without sending it. Whoever is not known learns nothing else.

    client -- HELLO tenant, nonce c ------------------------>
           <-- PROVE nonce s, HMAC(secret, "server" c s) ----  the server knows the secret
           --- PROVE HMAC(secret, "client" c s) ------------>  the client knows it
           <-- OK boot, limits -------------------------------
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any

from radix.service.choosing import Owner
from radix.service.config import ServiceConfig
from radix.service.context import Context
from radix.service.opening import owned_by, parse_opening
from radix.service.protocol import (
    Frame,
    Op,
    ProtocolError,
    Status,
    agreed,
    parse_text,
    proof,
    text_of,
    versions_in,
)
from radix.service.session import Opened, Session, Staging
from radix.service.tenants import Tenant

MOST_STORES = 4096
_NONCE_BYTES = 16


def hello(context: Context, session: Session, frame: Frame) -> None:
    """Who is there. Answered with what the server is, or with a challenge."""
    value = parse_text(frame.keys, frame.request)
    name = value.get("tenant", "")
    if not isinstance(name, str) or session.tenant is not None:
        raise ProtocolError("HELLO: once, with a tenant's name", Status.DENIED, frame.request)
    session.version = agreed(context.spoken, versions_in(value, frame.request), frame.request)
    known = by_socket(context.config, session, name)
    if known is not None:
        _enter(context, session, frame, known)
        return
    nonce = _nonce(value, frame)
    tenant = next((t for t in context.config.tenants if t.name == name and t.secret), None)
    if session.local or nonce is None:
        raise ProtocolError(
            f"user {session.uid} is no tenant of this service"
            if session.local
            else "prove who you are: a tenant and a nonce",
            *(Status.DENIED, frame.request),
        )
    # Of a tenant that is not known the challenge looks alike: nobody learns which there are.
    secret = tenant.secret if tenant is not None and tenant.secret else secrets.token_bytes(32)
    mine = secrets.token_hex(_NONCE_BYTES)
    session.challenge = {"tenant": tenant, "secret": secret, "client": nonce, "server": mine}
    told = {"nonce": mine, "proof": proof(secret, "server", name, nonce, mine)}
    session.reply(Op.HELLO, frame.request, text_of(told), status=Status.PROVE)


def prove(context: Context, session: Session, frame: Frame) -> None:
    """The answer to a challenge: once."""
    said, session.challenge = session.challenge, None
    given = parse_text(frame.keys, frame.request).get("proof")
    if said is None or not isinstance(given, str):
        raise ProtocolError("PROVE: nothing was asked", Status.DENIED, frame.request)
    tenant: Tenant | None = said["tenant"]
    name = tenant.name if tenant is not None else ""
    wanted = proof(said["secret"], "client", name, said["client"], said["server"])
    if tenant is None or not hmac.compare_digest(wanted.encode(), given.encode("utf-8", "replace")):
        raise ProtocolError("PROVE: not who you say", Status.DENIED, frame.request)
    _enter(context, session, frame, tenant)


def by_socket(config: ServiceConfig, session: Session, name: str) -> Tenant | None:
    """The tenant that the socket itself proves: by user, or by certificate."""
    for tenant in config.tenants:
        if name not in ("", tenant.name):
            continue
        if session.local and session.uid in tenant.uids:
            return tenant
        if session.certificate is not None and session.certificate in tenant.certificate_names:
            return tenant
    return None


def _nonce(value: dict[str, Any], frame: Frame) -> str | None:
    nonce = value.get("nonce")
    if nonce is None:
        return None
    if not isinstance(nonce, str) or not 2 * _NONCE_BYTES <= len(nonce) <= 128:
        raise ProtocolError("HELLO: nonce must be 32 to 128 digits", Status.DENIED, frame.request)
    return nonce


def _enter(context: Context, session: Session, frame: Frame, tenant: Tenant) -> None:
    if context.draining:
        raise ProtocolError("the server takes nothing new", Status.DRAINING, frame.request)
    session.tenant = tenant
    limits = context.config.limits
    told = {
        "version": session.version,
        "boot": context.boot.hex(),
        "tenant": tenant.name,
        "max_frame_bytes": limits.max_frame_bytes,
        "max_pipeline": limits.max_pipeline,
        "max_leases": limits.max_leases,
    }
    session.reply(frame.op, frame.request, text_of(told))


def open_store(context: Context, session: Session, frame: Frame) -> None:
    """A number for a store and a namespace in it; the pool and the staging memory with it, where
    the other side is on this machine.
    """
    tenant = session.tenant
    assert tenant is not None  # nobody else gets here
    if context.draining:
        raise ProtocolError("the server takes nothing new", Status.DRAINING, frame.request)
    opening = parse_opening(parse_text(frame.keys, frame.request), frame.request)
    if len(session.stores) >= MOST_STORES:
        raise ProtocolError(
            f"{MOST_STORES} namespaces are open in this connection", Status.LIMIT, frame.request
        )
    if not any(opening.namespace.model.startswith(prefix) for prefix in tenant.namespaces):
        raise ProtocolError(
            f"model {opening.namespace.model!r:.80}: tenant {tenant.name} may use "
            f"{', '.join(map(repr, tenant.namespaces))}",
            *(Status.DENIED, frame.request),
        )
    hosted = context.domains[tenant.domain].store(opening.signature, opening.pool_bytes)
    files: list[int] | None = None
    if session.local:
        if session.staging is None:
            session.staging = Staging(context.config.limits.staging_bytes)
        files = [hosted.host.descriptor, session.staging.descriptor]
    owner = Owner(tenant.domain, tenant.name if tenant.own_blocks else "")
    namespace = owned_by(owner, opening.namespace, opening.signature)
    if hosted not in session.hosts:
        session.hosts.add(hosted)
        hosted.users += 1
    number = len(session.stores) + 1
    opened = session.stores[number] = Opened(hosted, namespace)
    told = {
        "pool_bytes": hosted.pool_bytes,
        "staging_bytes": session.staging.nbytes if session.staging is not None else 0,
        "strides": [hosted.stride(group) for group in range(len(hosted.flat.groups))],
        "persistent": hosted.persistent,
        "seed": opened.seed.hex(),
    }
    request = frame.request
    session.unanswered += 1

    def opens() -> None:
        session.unanswered -= 1
        session.reply(Op.OPEN, request, text_of(told), files=files, number=number)

    if hosted.remote is None:
        opens()
    else:  # else the first questions were misses, whatever others have stored
        hosted.remote.when_tried(opens)
