"""A configuration is accepted whole or refused with the key that is wrong: flags lie over the file,
the file over the defaults, and nothing listens where nobody proves who he is.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from radix.options import OptionError
from radix.service.config import OPTIONS, Address, Option, read_config

SECRET = b"0123456789abcdef0123456789abcdef"
FILE = """\
socket = "/tmp/x/radix.sock"
listen = "127.0.0.1:0"
host_bytes = "8GiB"
disk_bytes = 1073741824
data = "/var/lib/radix"

[limits]
max_connections = 8
slow_s = 2.5

[tenants.acme]
uids = [1000, 1001]
secret_file = "{secret}"
namespaces = ["acme/", "shared/"]
quota_bytes = "2GiB"
weight = 3

[tenants.other]
domain = "acme"
"""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    path.chmod(0o600)
    return path


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "radix.toml"
    path.write_text(text)
    return path


def test_defaults_are_one_tenant_of_the_user_on_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    config = read_config()
    assert config.socket == Path("/run/user/7/radix.sock")
    assert (config.socket_mode, config.listen, config.data, config.remote) == (0o600, *[None] * 3)
    assert config.admin == Address("127.0.0.1", 9470) and config.admin.loopback
    (tenant,) = config.tenants
    assert (tenant.name, tenant.uids, tenant.secret) == ("default", (os.getuid(),), None)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert read_config().socket == Path(f"/tmp/radix-{os.getuid()}/radix.sock")


def test_a_file_and_flags_over_it_are_read(tmp_path: Path, secret: Path) -> None:
    file = written(tmp_path, FILE.format(secret=secret))
    config = read_config(file, {"host_bytes": "3MiB", "admin": "none", "limits.idle_s": "60"})
    assert (config.host_bytes, config.disk_bytes, config.admin) == (3 << 20, 1 << 30, None)
    assert config.listen == Address("127.0.0.1", 0)
    limits = config.limits
    assert (limits.max_connections, limits.slow_s, limits.idle_s) == (8, 2.5, 60)
    acme, other = config.tenants
    assert (acme.uids, acme.secret, acme.quota_bytes) == ((1000, 1001), SECRET, 2 << 30)
    assert (acme.namespaces, acme.weight) == (("acme/", "shared/"), 3)
    assert (other.domain, other.namespaces, other.uids) == ("acme", ("",), ())
    assert SECRET.decode() not in repr(config)


def test_a_tenant_that_is_given_takes_the_place_of_the_file_s(tmp_path: Path, secret: Path) -> None:
    file = written(tmp_path, FILE.format(secret=secret))
    config = read_config(file, tenants={"acme": {"uids": [5], "secret_file": str(secret)}})
    assert [(tenant.name, tenant.uids) for tenant in config.tenants] == [
        ("acme", (5,)),
        ("other", ()),
    ]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_every_option_refuses_nonsense_by_its_flag(option: Option) -> None:
    key, flag = option.key, option.flag
    with pytest.raises(OptionError, match=f"^{flag}: "):
        read_config(flags={key: ""})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sockets = 'x'", "sockets: unknown; known: admin"),
        ("[limits]\nmax_frames = 1", "limits.max_frames: unknown"),
        ("host_bytes = '8G'", "host_bytes: expected a size such as 8GiB"),
        ("host_bytes = 1.5", "host_bytes: expected a size"),
        ("host_bytes = true", "host_bytes: expected a text or a number"),
        ("admin = '0.0.0.0:80'", "admin: the admin page knows no users"),
        ("admin = 'example.org:80'", "admin: expected an address"),
        ("listen = '127.0.0.1:70000'", "listen: expected an address"),
        ("remote = 'ftp://x'", "remote: expected a URL"),
        ("socket_mode = '777'", "socket_mode: expected permissions"),
        ("socket = '/{}'".format("x" * 120), "longer than the 107 bytes"),
        ("write = 'write_back'", "write: expected one of write_through"),
        ("tenants = 3", "tenants: expected tables"),
        ("[tenants.a]\nuid = [1]", "tenants.a.uid: unknown; known: certificate_names"),
        ("[tenants.a]\nuids = ['root']", "tenants.a.uids: expected a list of user ids"),
        ("[tenants.a]\nsecret_file = '/nowhere/x'", "tenants.a.secret_file: /nowhere/x: No such"),
        ("[tenants.a]\nweight = 0", "tenants.a.weight: expected a number of 0.001 to 1000000"),
        ("[tenants.a]\nquota_bytes = 'all'", "tenants.a.quota_bytes: expected a size"),
        ("[tenants.'a b']\nweight = 1", "tenants.a b: expected a name"),
        ("[tenants.a]\nuids = [1]\n[tenants.b]\nuids = [1]", "user 1 is tenant 'a' already"),
        ("listen = '127.0.0.1:0'", "--listen: TCP needs tenants that prove who they are"),
        ("socket = 'none'", "--socket: nothing to listen on"),
        ("[tls]\nkey = '/etc/passwd'", "tls.certificate: needed with tls.key"),
        ("a = [", "not TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(OptionError) as refused:
        read_config(written(tmp_path, text))
    assert named in str(refused.value) and "\n" not in str(refused.value)


def test_a_secret_that_others_may_read_or_that_is_short_is_refused(secret: Path) -> None:
    tenants = {"a": {"secret_file": str(secret)}}
    assert read_config(tenants=tenants).tenants[0].secret == SECRET
    secret.chmod(0o640)
    with pytest.raises(OptionError, match="may be read by others"):
        read_config(tenants=tenants)
    secret.chmod(0o600)
    secret.write_bytes(b"short\n")
    with pytest.raises(OptionError, match="holds 5 bytes, expected at least 16"):
        read_config(tenants=tenants)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"--config: .*nowhere\.toml: No such file"):
        read_config(tmp_path / "nowhere.toml")
