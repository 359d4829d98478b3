"""Streams, plain or in TLS."""
