"""Benchmarks: what the library reaches, each figure beside its limit or a plain copy of the same
bytes, measured in the same run. ``python -m bench run`` is the one entry; README.md explains it.
"""
