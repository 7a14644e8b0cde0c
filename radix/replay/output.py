"""Write result files so that they appear whole or not at all.

Kept here: a reader never sees half a file, an interrupted run leaves no draft behind, and what is
not a regular file (a pipe, a terminal) is written to in place, and what a link names takes its new
content under its own name: neither is ever replaced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def draft_of(target: str | Path) -> Iterator[Path]:
    """Give a path to write to; it takes the place of `target` when the body ends without an error.

    The draft has the same suffix as the target. Cost: one rename.

    Raises:
        OSError: the draft cannot be renamed.
    """
    path = Path(target)
    if path.exists() and not path.is_file():
        yield path
        return
    path = path.resolve()  # not the link is replaced: /dev/stdout is one
    draft = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield draft
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
