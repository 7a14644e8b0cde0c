"""Policies: what to keep and what to let go, over the tree and apart from it."""
