"""Ranks forked from one process that has imported NumPy and hocket: a start costs milliseconds, not half a second."""
