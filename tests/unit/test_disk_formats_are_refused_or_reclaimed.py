"""What a directory says it is decides before anything is touched: a newer format is refused as it
is, another layout opens empty and its space comes back (C30, C99; I24, I25).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiers.disk_open
from radix.errors import TierUnavailableError
from radix.groups import Group
from radix.layout import Layout, Part
from tests.crash.diskrig import BLOCK_BYTES, DiskRig, snapshot

KNOWN = range(100)


def _filled(folder: Path, **options: object) -> None:
    with DiskRig(folder, **options) as rig:
        assert rig.store(range(10)).good.all()


def test_a_newer_format_is_left_byte_for_byte(tmp_path: Path) -> None:
    _filled(tmp_path / "d")
    path = tmp_path / "d" / "format"
    fields = json.loads(path.read_text())
    assert (fields["format"], fields["version"]) == ("radix-disk", 2)
    path.write_text(json.dumps(fields | {"version": 3}))
    before = snapshot(tmp_path)
    with pytest.raises(TierUnavailableError, match=r"version 3.*versions 1 to 2"):
        DiskRig(tmp_path / "d")
    assert snapshot(tmp_path) == before


def _as_version_1(folder: Path) -> None:
    path = folder / "format"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 1}) + "\n")


def test_a_directory_of_version_1_opens_warm_where_a_block_is_one_run(tmp_path: Path) -> None:
    """Its records are the same, to the byte; what is written now says so in ``format``."""
    _filled(tmp_path / "d")
    _as_version_1(tmp_path / "d")
    with DiskRig(tmp_path / "d") as rig:
        assert rig.adopt(KNOWN) == list(range(10))
        assert rig.verify(range(10)) == list(range(10))
    assert json.loads((tmp_path / "d" / "format").read_text())["version"] == 2


def test_a_directory_of_version_1_opens_cold_where_a_block_has_several_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 1 kept one checksum a piece and knew no layers: nothing of it is taken for a run."""
    heads = Part("kv", "uint8", (("layer", 2), ("head", 4), ("byte", 1024)), "head", 4)
    groups = (Group("kv", Layout((heads,), 4)),)
    with monkeypatch.context() as patch:
        patch.setattr(tiers.disk_open, "fingerprint", lambda *_: b"as of version 1.")
        _filled(tmp_path / "d", groups=groups)
    _as_version_1(tmp_path / "d")
    with DiskRig(tmp_path / "d", groups=groups) as rig:
        assert rig.restored == [] and rig.tier.counts.dropped == 10
        assert rig.store(range(20, 24)).good.all() and len(rig.verify(range(20, 24))) == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not json", "not a format file"),
        ('{"version": 1}', "not a format file"),
        ('{"format": "something", "version": 1}', "'something'"),
        ('{"format": "radix-disk", "version": 1}', "lacks a field"),
    ],
)
def test_a_format_that_nobody_knows_is_refused(tmp_path: Path, text: str, words: str) -> None:
    _filled(tmp_path / "d")
    (tmp_path / "d" / "format").write_text(text)
    before = snapshot(tmp_path)
    with pytest.raises(TierUnavailableError, match=words):
        DiskRig(tmp_path / "d")
    assert snapshot(tmp_path) == before


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "thesis.txt").write_text("years of work")
    with pytest.raises(TierUnavailableError, match=r"'thesis.txt' but no format"):
        DiskRig(tmp_path / "d")
    assert snapshot(tmp_path) == {"d/thesis.txt": b"years of work"}


def _two_parts() -> Group:
    axes = (("row", BLOCK_BYTES // 4),)
    return Group("kv", Layout((Part("a", "uint8", axes), Part("b", "uint8", (("row", 6144),)))))


FOREIGN: dict[str, dict[str, object]] = {
    "layout of the same size": {"groups": (_two_parts(),)},
    "group of another name": {"groups": (Group.full("other", BLOCK_BYTES),)},
    "blocks of another size": {"groups": (Group.full("kv", 4096),)},
    "one group more": {"groups": (Group.full("kv", BLOCK_BYTES), Group.full("more", 4096))},
    "page of another size": {"page_bytes": 128},
    "blocks in values": {"payload": "lmdb"},
}


@pytest.mark.parametrize("what", FOREIGN)
def test_another_layout_opens_empty_and_gets_the_space(tmp_path: Path, what: str) -> None:
    """C30: store with fingerprint f1, reopen with f2: no hit, and the entries are reclaimed."""
    with DiskRig(tmp_path / "d") as rig:
        while rig.tier.free_blocks(0):
            rig.store(range(len(rig.slots), len(rig.slots) + 1))
        held = len(rig.slots)
    with DiskRig(tmp_path / "d", **FOREIGN[what]) as rig:
        assert rig.restored == []
        assert rig.tier.counts.dropped == held
        assert rig.tier.free_blocks(0) == rig.tier.capacity_blocks(0) > 0
        rig.tier.check()
    # Nothing of the first layout comes back either: its slots may be anybody's by now.
    with DiskRig(tmp_path / "d") as rig:
        assert rig.restored == []
        assert rig.store(range(20, 24)).good.all() and len(rig.verify(range(20, 24))) == 4


def test_the_same_layout_opens_warm(tmp_path: Path) -> None:
    """The fingerprint is of the layout, not of the objects that say it."""
    _filled(tmp_path / "d")
    with DiskRig(tmp_path / "d", groups=(Group.full("kv", BLOCK_BYTES),)) as rig:
        assert rig.adopt(KNOWN) == list(range(10))


def test_what_a_cut_creation_left_is_taken_up(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "lock").write_bytes(b"")
    (tmp_path / "d" / "format.new").write_bytes(b"{")
    _filled(tmp_path / "d")


def test_directories_are_for_their_owner_alone(tmp_path: Path) -> None:
    _filled(tmp_path / "a" / "d")
    assert (tmp_path / "a" / "d").stat().st_mode & 0o777 == 0o700
    for path in (tmp_path / "a" / "d").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
