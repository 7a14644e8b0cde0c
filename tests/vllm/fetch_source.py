"""Fetches the source distribution of a vLLM release through pip's own settings: index, certificates
and proxies are whatever pip here uses. ``pip download`` itself would build the package's metadata,
for which it wants a compiler and another torch; so its parts are called that only find and fetch.

    python fetch_source.py 0.32.0 FOLDER     unpacks FOLDER/vllm-0.32.0 unless it is there
"""

from __future__ import annotations

import hashlib
import io
import shutil
import sys
import tarfile
from pathlib import Path

# What PyPI says the files are; another one is refused.
SHA256 = {
    "0.32.0": "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad",
    "0.33.0": "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
}
# The tests, the classes that adapters build on, and what vLLM's tests read of the rest.
TAKEN = ("tests/v1/", "tests/__init__.py", "tests/utils.py", "vllm/v1/kv_offload/")


def fetch(version: str) -> bytes:
    """The bytes of ``vllm-VERSION.tar.gz``. Raises ``ValueError`` when they are not the known."""
    from pip._internal.commands import create_command
    from pip._internal.utils.temp_dir import tempdir_registry
    from pip._vendor.packaging.specifiers import SpecifierSet

    command = create_command("download")
    options, _ = command.parse_args(["--no-deps", "--no-binary", ":all:", "vllm"])
    with command.main_context():
        command.tempdir_registry = command.enter_context(tempdir_registry())
        session = command.get_default_session(options)
        finder = command._build_package_finder(options, session)
        wanted = SpecifierSet(f"=={version}")
        found = finder.find_best_candidate("vllm", wanted).best_candidate
        if found is None:
            raise ValueError(f"the package index of pip has no source distribution of {version}")
        answer = session.get(found.link.url_without_fragment)
        answer.raise_for_status()
        raw = bytes(answer.content)
    digest = hashlib.sha256(raw).hexdigest()
    if digest != SHA256[version]:
        raise ValueError(f"vllm {version}: sha256 is {digest}, {SHA256[version]} was expected")
    return raw


def unpack(raw: bytes, version: str, folder: Path) -> Path:
    """Unpack what is needed of a source distribution as ``folder / vllm-VERSION``."""
    name = f"vllm-{version}"
    target = folder / name
    unfinished = folder / f"{name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:gz") as archive:
        for member in archive:
            inside = member.name.removeprefix(f"{name}/")
            if member.isfile() and inside.startswith(TAKEN):
                member.name = inside
                archive.extract(member, unfinished, filter="data")
    unfinished.rename(target)
    return target


def main() -> None:
    """Fetch and unpack what the command line says."""
    version, folder = sys.argv[1], Path(sys.argv[2])
    if not (folder / f"vllm-{version}").exists():
        folder.mkdir(parents=True, exist_ok=True)
        unpack(fetch(version), version, folder)


if __name__ == "__main__":
    main()
