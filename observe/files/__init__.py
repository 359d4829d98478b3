"""Traces as files."""
