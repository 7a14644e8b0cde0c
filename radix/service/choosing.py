"""Which namespaces somebody means: by tenant, by model and revision and adapter, as they are kept
on disk and in the trees of a service. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from radix.keys import Namespace
from radix.options import OptionError

_FIELDS = ("model", "revision", "adapter", "adapter_version")
_DOMAIN, _TENANT = b"domain", b"tenant"  # equally long, so that neither is taken for the other


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is meant: None of a field is any. ``tenant``: one of a service with blocks of its own, a
    domain of it where blocks are shared, or the salt of an embedded cache.
    """

    tenant: str | None
    model: str | None
    revision: str | None
    adapter: str | None
    adapter_version: str | None

    def means(self, canonical: bytes) -> bool:
        """Whether a namespace is meant; bytes that encode none never are."""
        try:
            name = Namespace.parse(canonical)
        except ValueError:
            return False
        if self.tenant is not None and self.tenant not in owners_of(name.salt):
            return False
        return all(getattr(self, each) in (None, getattr(name, each)) for each in _FIELDS)


@dataclass(frozen=True, slots=True)
class Owner:
    """Who a service wrote into a namespace: a domain, and the tenant of it whose blocks these are
    alone ("": of all that share the domain's).
    """

    domain: str
    tenant: str

    def salted(self, salt: bytes) -> bytes:
        """The salt of a namespace of theirs, whatever the client wrote there."""
        kind, names = (_TENANT, (self.domain, self.tenant)) if self.tenant else (_DOMAIN, ())
        named = [name.encode() for name in names or (self.domain,)]
        return kind + b"".join(len(each).to_bytes(2, "big") + each for each in named) + salt


def owner_of(salt: bytes) -> Owner:
    """What ``Owner.salted`` wrote; of a salt that no service wrote, both empty."""
    names: list[str] = []
    at = len(_DOMAIN)
    for _ in range({_DOMAIN: 1, _TENANT: 2}.get(salt[:at], 0)):
        size = int.from_bytes(salt[at : at + 2], "big")
        if len(salt) < at + 2 + size:
            return Owner("", "")
        names.append(salt[at + 2 : at + 2 + size].decode("utf-8", "replace"))
        at += 2 + size
    domain, tenant = (*names, "", "")[:2]
    return Owner(domain, tenant)


def owners_of(salt: bytes) -> tuple[str, ...]:
    """Who a namespace belongs to: of a service the tenant or the domain that it wrote there, else
    the salt as text or in hexadecimal.

    >>> owners_of(b"domain\\x00\\x04acmesalt"), owners_of(b"acme"), owners_of(bytes([0, 255]))
    (('acme',), ('acme',), ('00ff',))
    """
    owner = owner_of(salt)
    if owner.domain:
        return (owner.tenant or owner.domain,)
    text = salt.decode("ascii", "replace")
    return (text if text.isprintable() and "\ufffd" not in text else salt.hex(),)


def chosen_of(tenant: str | None, namespace: str | None) -> Chosen:
    """What is typed: a tenant, and ``MODEL`` or ``model=M,revision=R,adapter=A``.

    >>> chosen_of(None, "model=llama,revision=r2").revision
    'r2'

    Raises ``OptionError`` for nothing at all, or a field that nobody knows.
    """
    if tenant is None and namespace is None:
        raise OptionError("--namespace", "say which: --namespace or --tenant, or both")
    fields: dict[str, str | None] = dict.fromkeys(_FIELDS)
    if namespace is not None and "=" not in namespace:
        fields["model"] = namespace
    elif namespace is not None:
        for entry in namespace.split(","):
            name, equals, value = entry.partition("=")
            if not equals or name not in _FIELDS:
                known = ", ".join(_FIELDS)
                what = f"expected a model, or fields of {known} such as model=M; got {entry!r}"
                raise OptionError("--namespace", what)
            fields[name] = value
    return Chosen(tenant=tenant, **fields)


def anything() -> Chosen:
    """Every namespace."""
    return Chosen(None, None, None, None, None)
