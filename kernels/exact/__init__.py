"""Sums of floats that are rounded once, in C."""
