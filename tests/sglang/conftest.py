"""Makes SGLang importable before the first of its tests is; and where pages are kept in a test."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.peers import standin
from tests.service.rig import Service

assert standin.STOOD_IN
SECRET = "a secret of thirty-two bytes, yes"


@pytest.fixture(params=["directory", "service"])
def below(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path | dict[str, Any]]:
    """A directory, a running service on this machine, or (asked for by name) one over TCP."""
    if request.param == "directory":
        yield tmp_path / "radix"
        return
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    tenants = {"here": {"uids": [os.getuid()], "secret_file": str(secret)}}
    with Service(tmp_path, tenants, listen="127.0.0.1:0", data=str(tmp_path / "data")) as service:
        if request.param == "service":
            yield {"service": service.path}
        else:
            where = {"service": service.addresses["listen"], "tenant": "here"}
            yield where | {"secret_file": str(secret)}
        service.check()


@pytest.fixture(autouse=True)
def _configuration_of_its_own() -> Iterator[None]:
    """What a test publishes as the engine's configuration is none of the next one's."""
    yield
    from sglang.srt.runtime_context import reset_context

    reset_context()
