"""Read a model from a TOML file: the same data as a preset, for models that have none.

The schema is the example of docs/model-file.md. Kept here: a file is accepted whole or refused with
an `OptionError` that names the file, the place in it and what was expected; a field that nobody
knows is a fault, not ignored.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from radix.groups import Retention
from radix.layout import DTYPE_BYTES, Part
from radix.options import OptionError
from radix.replay.models import PRESETS, Attention, Layers, Model

OPTION = "--model"
RULES = ("full", "window", "chunked", "state")
_SPANS = ("window", "chunked")
_SUFFIX = ".toml"
_LIMIT = 1 << 31
_MOST = 1e18


def model_of(text: str) -> Model:
    """Return the preset of that name, or the model of a file whose name ends in .toml.

    Raises:
        OptionError: no preset has the name, or the file cannot be read or holds no model.
    """
    if text.endswith(_SUFFIX):
        return read_model(text)
    if text not in PRESETS:
        known = ", ".join(PRESETS)
        raise OptionError(OPTION, f"unknown model {text!r}; known: {known}, or a file {_SUFFIX}")
    return PRESETS[text]


def read_model(path: str) -> Model:
    """Read a model file. Cost: the file.

    Raises:
        OptionError: it cannot be read, is no TOML, lacks a field, has one that nobody knows, or a
            value is not what the field takes.
    """
    try:
        values = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise OptionError(OPTION, f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(OPTION, f"{path}: not TOML ({error})") from None
    table = _Table(path, "", values)
    table.only("name", "active_parameters", "group")
    name = table.text("name")
    sets = tuple(_layers(entry) for entry in table.tables("group"))
    names = [kept.name for kept in sets]
    for twice in names:
        if names.count(twice) > 1:
            table.fail("group", f"two groups are named {twice!r}")
    known = "active_parameters" in table.values
    return Model(name, sets, table.amount("active_parameters") if known else None)


def _layers(table: _Table) -> Layers:
    rule = table.text("retention")
    if rule not in RULES:
        table.fail("retention", f"{rule!r} is none of {', '.join(RULES)}")
    known = ["name", "retention", "layers", "part", "grid_tokens", "attention"]
    if rule in _SPANS:
        known.append("tokens")
    table.only(*known)
    retention = Retention(rule, table.count("tokens") if rule in _SPANS else 0)
    parts = tuple(map(_part, table.tables("part")))
    names = [part.name for part in parts]
    for twice in names:
        if names.count(twice) > 1:
            table.fail("part", f"two parts are named {twice!r}")
    return Layers(
        name=table.text("name"),
        retention=retention,
        layers=table.count("layers"),
        parts=parts,
        grid_tokens=table.count("grid_tokens") if "grid_tokens" in table.values else None,
        attention=_attention(table.table("attention")) if "attention" in table.values else None,
    )


def _attention(table: _Table) -> Attention:
    table.only("heads", "key", "value")
    return Attention(table.count("heads"), table.count("key"), table.count("value"))


def _part(table: _Table) -> Part:
    table.only("name", "dtype", "axes")
    dtype = table.text("dtype")
    if dtype not in DTYPE_BYTES:
        table.fail("dtype", f"{dtype!r} is none of {', '.join(sorted(DTYPE_BYTES))}")
    axes = table.table("axes")
    for axis in axes.values:
        if axis in ("layer", "token"):
            axes.fail(axis, "axes are those of one layer and one token, or of one snapshot")
    if not axes.values:
        table.fail("axes", "expected at least one axis, such as { head = 8, dim = 128 }")
    sizes = tuple((axis, axes.count(axis)) for axis in axes.values)
    return Part(table.text("name"), dtype, sizes)


class _Table:
    """A table of the file and where it stands, for the errors.

    Ask: `text`, `count`, `amount`, `table`, `tables`. Refuse: `only`, `fail`.
    """

    def __init__(self, file: str, place: str, values: Mapping[str, Any]) -> None:
        self.file = file
        self.place = place
        self.values = values

    def fail(self, field: str, what: str) -> NoReturn:
        raise OptionError(OPTION, f"{self.file}: {self._at(field)}: {what}")

    def _at(self, field: str) -> str:
        return f"{self.place}.{field}" if self.place else field

    def only(self, *known: str) -> None:
        """Refuse a field that is not known here."""
        for field in self.values:
            if field not in known:
                self.fail(field, f"unknown; known here: {', '.join(known)}")

    def text(self, field: str) -> str:
        value = self._get(field)
        if not isinstance(value, str) or not value:
            self.fail(field, f"expected a text, got {value!r}")
        return value

    def count(self, field: str) -> int:
        value = self._get(field)
        if type(value) is not int or not 1 <= value < _LIMIT:
            self.fail(field, f"expected an integer of 1 to 2^31 - 1, got {value!r}")
        return value

    def amount(self, field: str) -> float:
        value = self._get(field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _MOST:
            self.fail(field, f"expected a number above 0, such as 8.03e9, got {value!r}")
        return float(value)

    def table(self, field: str) -> _Table:
        value = self._get(field)
        if not isinstance(value, dict):
            self.fail(field, f"expected a table, got {value!r}")
        return _Table(self.file, self._at(field), value)

    def tables(self, field: str) -> list[_Table]:
        value = self._get(field)
        if not isinstance(value, list) or not value:
            self.fail(field, f"expected at least one [[{self._header(field)}]]")
        for entry in value:
            if not isinstance(entry, dict):
                self.fail(field, f"expected tables, got {entry!r}")
        return [
            _Table(self.file, f"{self._at(field)}[{number}]", entry)
            for number, entry in enumerate(value)
        ]

    def _header(self, field: str) -> str:
        return "group.part" if self.place and field == "part" else field

    def _get(self, field: str) -> Any:
        if field not in self.values:
            self.fail(field, "field is missing")
        return self.values[field]
