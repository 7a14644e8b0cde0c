"""A remote tier, and the URL of its backend, refuse what makes no sense by the argument's name,
before anything is connected; what cannot stand above it is refused when it is attached.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radix.errors import TierUnavailableError, UnsupportedError
from radix.groups import Group
from radix.layout import Layout, Part
from radix.tier import TierMode, View
from tiers.disk import DiskTier
from tiers.host import AdoptedTier
from tiers.remote import RemoteTier, backend_of

NOWHERE = "redis://127.0.0.1:1"  # nothing listens there
KV = Group.full("kv", 64)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://a:1", "redis://"),
        ("", "redis://"),
        ("redis://", "host:port"),
        ("redis://a", "host:port"),
        ("redis://a:1,b", "host:port"),
        ("mooncake://a", "master:port"),
        ("mooncake://a:1?segment_bytes=x", "segment_bytes"),
        ("mooncake://a:1?colour=red", "colour"),
    ],
)
def test_an_url_that_names_no_backend_is_refused(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        backend_of(url)


def test_a_password_is_shown_nowhere() -> None:
    backend = backend_of("redis://me:secret@127.0.0.1:1")
    assert backend.url == NOWHERE
    assert "secret" not in RemoteTier(backend, blocks=1).url


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"blocks": 0}, ValueError, "blocks"),
        ({"blocks": "many"}, TypeError, "blocks"),
        ({"digest": "md5"}, ValueError, "digest"),
        ({"prefix": ""}, ValueError, "prefix"),
        ({"prefix": "a{b}"}, ValueError, "prefix"),
        ({"prefix": "a b"}, ValueError, "prefix"),
        ({"deadline_s": 0}, ValueError, "deadline_s"),
        ({"deadline_s": "soon"}, TypeError, "deadline_s"),
        ({"retry_s": -1}, ValueError, "retry_s"),
        ({"epoch_s": True}, TypeError, "epoch_s"),
        ({"failures": 0}, ValueError, "failures"),
        ({"threads": 1.5}, TypeError, "threads"),
        ({"staging_bytes": 0}, ValueError, "staging_bytes"),
        ({"queue_jobs": 0}, ValueError, "queue_jobs"),
        ({"name": ""}, ValueError, "name"),
        ({"open_s": -0.5}, ValueError, "open_s must be 0 or more"),
        ({"open_s": "now"}, TypeError, "open_s"),
        ({"close_s": -1}, ValueError, "close_s must be 0 or more"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused(
    options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        RemoteTier(NOWHERE, **({"blocks": 4} | options))


def _attached(groups: tuple[Group, ...], **options: Any) -> RemoteTier:
    rows = [[np.zeros((2, group.block_bytes), np.uint8)] for group in groups]
    above = AdoptedTier(rows, "rows")
    above.attach(groups, 64, None)
    remote = RemoteTier(NOWHERE, **({"blocks": 4, "deadline_s": 0.2} | options))
    remote.attach(groups, 64, above)
    return remote


def test_a_view_of_some_layers_is_refused() -> None:
    part = Part("k", "uint8", (("layer", 4), ("head", 2)), "head", 2)
    group = Group("kv", Layout((part,), 2))
    with pytest.raises(UnsupportedError, match="layers"):
        _attached((group,), views=View((0, 2), (0, 1)))


def test_a_tier_above_without_addresses_is_refused(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, limit_bytes=1 << 20, segment_bytes=65536)
    disk.attach((KV,), 64, None)
    with pytest.raises(UnsupportedError, match="no addresses"):
        RemoteTier(NOWHERE, blocks=4).attach((KV,), 64, disk)
    disk.close()


CALLS: list[Callable[[RemoteTier], object]] = [
    lambda tier: tier.poll(),
    lambda tier: tier.reserve(0, 1),
    lambda tier: tier.found(),
    lambda tier: tier.renew(),
]


def test_a_backend_that_is_nowhere_leaves_the_tier_off_and_its_epoch_as_it_was() -> None:
    tier = _attached((KV,))
    assert tier.mode is TierMode.OFF
    assert tier.counts.outages == 1
    with pytest.raises(TierUnavailableError):
        tier.reserve(0, 1)
    with pytest.raises(TierUnavailableError, match="no new epoch"):
        tier.renew()
    assert tier.free_blocks(0) == 0
    tier.set_mode(TierMode.ON)
    assert tier.mode is TierMode.OFF
    tier.close()


def test_a_forked_child_is_refused_and_only_forgets() -> None:
    tier = _attached((KV,))
    child = os.fork()
    if not child:
        refused = 0
        for call in CALLS:
            try:
                call(tier)
            except TierUnavailableError as error:
                refused += "forked child" in str(error)
        tier.close()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(CALLS)
    tier.close()
