"""A prefix cache for heterogeneous model state: what is kept, where it lies, when it is finished.

This package decides; the package ``tiers`` executes. Importing it loads neither torch nor lmdb.
"""

import sys

# The tree relies on the interpreter lock for its short calls; without one they would race.
if "t" in getattr(sys, "abiflags", ""):
    raise ImportError("radix does not support free-threaded Python yet; use a build with the GIL")

__version__ = "0.1.0"
