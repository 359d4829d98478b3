"""Reductions in C, with SIMD."""
