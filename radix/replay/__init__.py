"""Replay of recorded traffic: trace readers, index-only and byte replay, the optimum, plots."""
