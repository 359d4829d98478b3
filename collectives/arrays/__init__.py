"""Callers' memory: what an array is, where it lies, when it is copied."""
