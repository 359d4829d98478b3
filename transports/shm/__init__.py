"""Shared memory between ranks of a host, and between threads."""
