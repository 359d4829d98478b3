"""The proofs of docs/compression.md that take a moment."""

from __future__ import annotations

import pytest

from hocket.bench.compression import rounding

ONCE = {"int8": 0.0070, "int4": 0.1178}
"""The error of one encoding of normal numbers, in blocks of 256 and 128."""


def test_two_encodings_whatever_the_ranks() -> None:
    """As told in the field's tables: sqrt(2) times one encoding; a ring's error grows with the ranks."""
    found = rounding.table(list(ONCE), (2, 4, 8))
    for codec, once in ONCE.items():
        for size in (2, 4, 8):
            assert found[codec, size][0] == pytest.approx(once * 2**0.5, rel=0.05), (codec, size)
        ring = [found[codec, size][1] for size in (2, 4, 8)]
        assert ring[2] > 1.25 * ring[1] > 1.3 * ring[0], ring
