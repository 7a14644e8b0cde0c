"""Tiers that hold blocks and move bytes: the data plane that ``radix`` decides for.

Each adapter is imported by its own module (``tiers.host``, ``tiers.disk``, ...), so that torch and
lmdb are loaded only where they are used.
"""
