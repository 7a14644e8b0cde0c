"""Certificates made here, by openssl: of an authority, and those that it signs."""

from __future__ import annotations

import subprocess
from pathlib import Path


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def authority(folder: Path, name: str) -> Path:
    """A certificate that signs others; its key lies beside it."""
    path = folder / f"{name}.pem"
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-days", "2", "-subj", f"/CN={name}", "-keyout", str(path.with_suffix(".key"))),
        *("-out", str(path)),
    )
    return path


def signed(by: Path, name: str, *, address: str = "") -> tuple[Path, Path]:
    """A certificate of this name, and its key; ``address``: which a server has."""
    path = by.parent / f"{by.stem}-{name}.pem"
    key, request = path.with_suffix(".key"), path.with_suffix(".csr")
    _openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request)),
    )
    extension = path.with_suffix(".ext")
    extension.write_text(f"subjectAltName=IP:{address}\n" if address else "")
    _openssl(
        *("x509", "-req", "-in", str(request), "-CA", str(by), "-CAkey"),
        *(str(by.with_suffix(".key")), "-CAcreateserial", "-days", "2", "-out", str(path)),
        *("-extfile", str(extension)),
    )
    return path, key
