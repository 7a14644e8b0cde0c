"""Types of the extension module: cffi's two objects, and the fast entries of native/fastcall.c."""

from typing import Any

ffi: Any
lib: Any

def __getattr__(name: str) -> Any: ...
