"""Sums of floats that are rounded once, and floats in fewer bytes with the same bits, in C."""
