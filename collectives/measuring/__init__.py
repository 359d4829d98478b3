"""Algorithms, codecs and ways to read memory under the stopwatch, all ranks together."""
