"""Asynchronous calls: who waits, and who drives (blocking ones wait in `engine/`)."""
