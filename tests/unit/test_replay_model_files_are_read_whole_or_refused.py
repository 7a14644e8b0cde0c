"""A model file means what the documented example says, or is refused by file, place and reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from radix.options import OptionError
from radix.replay.model_files import RULES, model_of
from radix.replay.models import PRESETS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "model-file.md"
GOOD = """
name = "small"
[[group]]
name = "attention"
retention = "full"
layers = 2
[[group.part]]
name = "keys"
dtype = "int8"
axes = { head = 2, dim = 4 }
[[group]]
name = "sliding"
retention = "window"
tokens = 8
layers = 3
[[group.part]]
name = "keys"
dtype = "float32"
axes = { dim = 4 }
[[group]]
name = "delta"
retention = "state"
grid_tokens = 64
layers = 1
[[group.part]]
name = "state"
dtype = "bfloat16"
axes = { dim = 5 }
"""


def refuse(tmp_path: Path, text: str) -> str:
    path = tmp_path / "model.toml"
    path.write_text(text)
    with pytest.raises(OptionError) as caught:
        model_of(str(path))
    message = str(caught.value)
    prefix = f"--model: {path}: "
    assert message.startswith(prefix)
    return message.removeprefix(prefix)


def test_a_good_file_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(GOOD)
    model = model_of(str(path))
    assert model.name == "small"
    found = [
        (kept.name, kept.retention.rule, kept.retention.tokens, kept.unit_bytes, kept.grid_tokens)
        for kept in model.sets
    ]
    assert found == [
        ("attention", "full", 0, 16, None),
        ("sliding", "window", 8, 48, None),
        ("delta", "state", 0, 10, 64),
    ]


def test_the_example_of_the_document_is_a_model_file(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```", DOCUMENT.read_text(), re.M | re.S)
    path = tmp_path / "example.toml"
    path.write_text(text)
    model = model_of(str(path))
    qwen = PRESETS["Qwen3-Next-80B-A3B"]
    assert (model.token_bytes, model.snapshot_bytes) == (qwen.token_bytes, qwen.snapshot_bytes)
    assert {kept.retention.rule for kept in model.sets} < set(RULES)
    assert model.active_parameters == qwen.active_parameters
    assert model.sets[0].attention == qwen.sets[0].attention


def test_an_unknown_name_lists_the_presets() -> None:
    with pytest.raises(OptionError) as caught:
        model_of("Llama-9")
    assert all(name in str(caught.value) for name in ("'Llama-9'", ".toml", *PRESETS))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"nowhere\.toml: No such file"):
        model_of(str(tmp_path / "nowhere.toml"))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('name = "small"', "", "name: field is missing"),
        ('name = "small"', 'name = ""', "name: expected a text"),
        ('name = "small"', 'name = "small"\nsize = 1', "size: unknown"),
        ("layers = 2", "", "group[0].layers: field is missing"),
        ("layers = 2", "layers = 0", "group[0].layers: expected an integer of 1"),
        ("layers = 2", "layers = true", "group[0].layers: expected an integer of 1"),
        ("layers = 2", "layers = 2.0", "group[0].layers: expected an integer of 1"),
        ("layers = 2", "layers = 2\ntokens = 4", "group[0].tokens: unknown"),
        ("layers = 2", "layers = 2\nattention = 4", "group[0].attention: expected a table"),
        (
            "layers = 2",
            "layers = 2\nattention = { heads = 1, key = 2 }",
            "group[0].attention.value: field is missing",
        ),
        (
            "layers = 2",
            "layers = 2\nattention = { heads = 1, key = 2, value = 2, query = 2 }",
            "group[0].attention.query: unknown",
        ),
        ('"small"', '"small"\nactive_parameters = 0', "active_parameters: expected a number above"),
        ('"small"', '"small"\nactive_parameters = nan', "active_parameters: expected a number"),
        ('"small"', '"small"\nactive_parameters = true', "active_parameters: expected a number"),
        ('"full"', '"most"', "group[0].retention: 'most' is none of full, window"),
        ('"full"', '"scratch"', "group[0].retention: 'scratch' is none of"),
        ("tokens = 8", "", "group[1].tokens: field is missing"),
        ("tokens = 8", "tokens = 0", "group[1].tokens: expected an integer"),
        ("grid_tokens = 64", "grid_tokens = 0", "group[2].grid_tokens: expected an integer"),
        ("grid_tokens = 64", "grid = 64", "group[2].grid: unknown"),
        ('"int8"', '"int7"', "group[0].part[0].dtype: 'int7' is none of"),
        ("axes = { dim = 5 }", "axes = {}", "group[2].part[0].axes: expected at least one axis"),
        ("axes = { dim = 5 }", "axes = 5", "group[2].part[0].axes: expected a table"),
        ("{ dim = 5 }", "{ layer = 5 }", "group[2].part[0].axes.layer: axes are those of one"),
        ("{ dim = 5 }", "{ dim = -5 }", "group[2].part[0].axes.dim: expected an integer"),
        ('name = "delta"', 'name = "sliding"', "group: two groups are named 'sliding'"),
        ("[[group.part]]", "[group.part]", "group[0].part: expected at least one [[group.part]]"),
        ("axes = { dim = 5 }", "axes = { dim = 5", "not TOML"),
    ],
)
def test_what_does_not_fit_is_named_by_its_place(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    assert refuse(tmp_path, GOOD.replace(old, new, 1)).startswith(complaint)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('name = "m"\n', "group: field is missing"),
        ('name = "m"\ngroup = []\n', "group: expected at least one [[group]]"),
        ('name = "m"\ngroup = [1]\n', "group: expected tables, got 1"),
    ],
)
def test_a_file_without_groups_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    assert refuse(tmp_path, text) == complaint


def test_two_parts_of_one_name_are_refused(tmp_path: Path) -> None:
    twice = '[[group.part]]\nname = "state"\ndtype = "int8"\naxes = { dim = 1 }\n'
    assert refuse(tmp_path, GOOD + twice) == "group[2].part: two parts are named 'state'"


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(OptionError, match="not TOML"):
        model_of(str(path))
