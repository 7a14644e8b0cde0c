"""Peers: other programs at the same work, each a child process in an environment of its own."""
