"""The parts of packaging that pyproject.toml cannot say: what builds the extension, and its ABI."""

import os

from setuptools import setup

# make setup installs first and then runs native/build_ffi.py, which recompiles only what changed.
skip = os.environ.get("RADIX_NATIVE_SKIP") == "1"

setup(
    cffi_modules=[] if skip else ["native/build_ffi.py:make_ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
