"""What must be the same before one run's state may serve another: the weights, byte by byte, the
configuration, the dtypes, the code, and how attention is computed. Keeps the promise that state of
other weights is a miss, never wrong data.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from radix._native import ffi, lib
from radix.engines.versions import installed
from radix.errors import UnsupportedError

_THIS_PROCESS = os.urandom(16)
# Of a configuration: where it came from and which release wrote it, not what it computes.
_NOT_COMPUTED = ("_name_or_path", "transformers_version", "architectures")


class Identity:
    """The fingerprint of a model, as text: ``revision``. ``stale`` tells that weights were written
    since; ``renew`` reads them again.
    """

    def __init__(self, model: Any, revision: str | None) -> None:
        """``revision``: the caller's name of the weights, which are not read then."""
        self._model = model
        self._given = revision
        self.revision = ""
        self.renew()

    @property
    def stale(self) -> bool:
        """Whether a weight was replaced, or written in place, or attention is computed otherwise,
        since. Cost: the number of tensors.
        """
        seen = _versions(self._model)
        return seen[0] != self._seen[0] or (self._given is None and seen != self._seen)

    def renew(self, revision: str | None = None) -> None:
        """Takes the fingerprint again. ``revision``: the new name, where weights are named.
        ``UnsupportedError`` for weights that are not in memory. Cost: reads every weight.
        """
        if revision is not None:
            self._given = revision
        self._seen = _versions(self._model)
        digest = hashlib.sha256(_described(self._model).encode())
        if self._given is None:
            for name, tensor in _tensors(self._model):
                digest.update(f"|{name};{tensor.dtype};{tuple(tensor.shape)};".encode())
                digest.update(_digest(name, tensor))
        else:
            digest.update(b"|named|" + self._given.encode())
        self.revision = digest.hexdigest()


def _described(model: Any) -> str:
    config = {k: v for k, v in model.config.to_dict().items() if k not in _NOT_COMPUTED}
    return json.dumps(
        {
            "class": type(model).__name__,
            "config": config,
            "dtype": str(model.dtype),
            "attention": str(model.config._attn_implementation),
            "transformers": installed("transformers"),
            "code": _code(model),
        },
        sort_keys=True,
        default=str,
    )


def _code(model: Any) -> list[str]:
    """Digests of the files in which the model's modules are written, as long as they are not
    torch's: code of a model's own may be edited and keep its name. What has no file is known to
    this process alone. Cost: reads them.
    """
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    names = {kind.__module__ for kind in kinds}
    found = set()
    for name in names:
        if name.partition(".")[0] not in ("torch", "builtins", "abc", "typing"):
            path = getattr(sys.modules.get(name), "__file__", None)
            try:
                content = Path(path).read_bytes() if path else _THIS_PROCESS
            except OSError:
                content = _THIS_PROCESS
            found.add(hashlib.sha256(content).hexdigest())
    return sorted(found)


def _tensors(model: Any) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _versions(model: Any) -> list[object]:
    return [
        (str(model.config._attn_implementation), str(model.dtype), str(model.device)),
        *(
            (tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version)
            for _, tensor in _tensors(model)
        ),
    ]


def _digest(name: str, tensor: torch.Tensor) -> bytes:
    if tensor.is_meta:
        raise UnsupportedError(
            f"weight {name} is not in memory and cannot be read: name the weights by revision="
        )
    data = tensor.detach().contiguous().cpu().reshape(-1)
    raw = data.view(torch.uint8).numpy() if data.numel() else b""
    out = ffi.new("uint8_t[16]")
    lib.rdx_xxh3_128(ffi.from_buffer(raw), len(raw), out)
    return bytes(ffi.buffer(out))
