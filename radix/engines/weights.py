"""What tells the weights that an engine loads from others of the same name: the files of a folder,
or the one file, of which they are read. Whoever replaces them in place, or edits the configuration
beside them, has another cache. Keeps no invariant of its own; C28 leans on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_SAMPLES, _SAMPLE_BYTES = 16, 4096
# Beside the weights: how they are used, read whole. What makes text of tokens decides nothing.
_CODE = ".py"
_SAID = ("config.json", "params.json")
_OF_TEXT = ("tokenizer_config.json", "generation_config.json")


def weights_digest(model: str) -> str:
    """Tells the weights that lie in a folder, or in a file, from others that lay there before.

    Of files of weights by names, sizes, times of change and samples of their bytes: a copy is the
    same where it keeps the times. Of configurations (of the model, its quantization, what prepares
    images) and code by their bytes. Empty where ``model`` is neither: a name that the engine
    resolves.

    Cost: 16 reads a file.
    """
    found = hashlib.sha256()
    for path in _files(Path(model)):
        found.update(f"{path.name} ".encode())
        if path.suffix not in _WEIGHTS:
            found.update(hashlib.sha256(path.read_bytes()).digest())
            continue
        status = path.stat()
        size = status.st_size
        found.update(f"{size} {status.st_mtime_ns} ".encode())
        with path.open("rb") as file:
            for sample in range(_SAMPLES):
                file.seek(max(0, size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
                found.update(file.read(_SAMPLE_BYTES))
    if not Path(model).exists():
        return ""
    return found.hexdigest()[:32]


def _files(model: Path) -> Iterator[Path]:
    """Those that decide what the model computes, in the order of their names."""
    if model.is_dir():
        for path in sorted(model.iterdir()):
            said = path.name.endswith(_SAID) and path.name not in _OF_TEXT
            if (said or path.suffix in (*_WEIGHTS, _CODE)) and path.is_file():
                yield path
    elif model.is_file():
        yield model
