"""Makes SGLang importable before the first of its tests is."""

from tests.sglang import standin

assert standin.STOOD_IN
