"""Asynchronous calls: who waits, and who drives."""
