"""Which algorithm for which call."""
