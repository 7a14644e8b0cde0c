"""Weights that were put in the place of others under one name are another cache: what a folder
holds is told by its files, and a copy that keeps their times is the same.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from radix.engines.weights import weights_digest

BYTES = 300_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    for number in range(2):
        content = np.random.default_rng(number).bytes(BYTES)
        (made / f"model-{number}.safetensors").write_bytes(content)
    return made


def test_weights_of_another_training_are_seen(folder: Path) -> None:
    before = weights_digest(str(folder))
    (folder / "model-1.safetensors").write_bytes(np.random.default_rng(7).bytes(BYTES))
    assert weights_digest(str(folder)) != before


@pytest.mark.parametrize(
    "change", ["longer", "renamed", "gone", "more", "first", "last", "between"]
)
def test_each_change_of_the_files_is_seen(folder: Path, change: str) -> None:
    before, path = weights_digest(str(folder)), folder / "model-0.safetensors"
    content = bytearray(path.read_bytes())
    if change == "longer":
        path.write_bytes(content + b"\0")
    elif change == "renamed":
        path.rename(folder / "model-9.safetensors")
    elif change == "gone":
        path.unlink()
    elif change == "more":
        shutil.copy(path, folder / "model-2.safetensors")
    else:
        # between: where no sample of the bytes is taken, so that the time alone tells
        content[{"first": 0, "last": -1, "between": 10_000}[change]] ^= 1
        path.write_bytes(content)
    assert weights_digest(str(folder)) != before


def test_a_copy_of_the_folder_is_the_same_whatever_else_lies_in_it(folder: Path) -> None:
    copied = folder.with_name("copied")
    shutil.copytree(folder, copied)
    (copied / "README.md").write_text("about")
    assert weights_digest(str(copied)) == weights_digest(str(folder)) != ""


def test_a_small_and_an_empty_file_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"")
    (tmp_path / "b.bin").write_bytes(b"xy")
    assert weights_digest(str(tmp_path)) != ""


def test_a_name_that_is_no_folder_tells_nothing(tmp_path: Path) -> None:
    assert weights_digest("maker/model") == weights_digest(str(tmp_path / "gone")) == ""
