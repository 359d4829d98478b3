"""Reductions, codecs and Elias' codes in C, with SIMD."""
