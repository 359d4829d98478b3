"""Calls on GPU arrays."""
