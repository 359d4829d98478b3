"""The digest: it is XXH64, and tells bytes apart that differ in any of the ways that bytes come to differ."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from hocket.kernels.digest import digest
from hocket.training import digest as of_arrays
from hocket.training.crew import blocks

BYTES = bytes(np.random.default_rng(7).integers(0, 256, 300, np.uint8))
KNOWN = {b"": 0xEF46DB3751D8E999, b"a": 0xD24EC4F1A98C6E5B, b"abc": 0x44BC2CF5AD770999,
         b"Nobody inspects the spammish repetition": 0xFBCEA83C8A378BF1}  # fmt: skip
"""By other implementations of XXH64; the last one is longer than a stripe."""


@pytest.mark.parametrize("data", KNOWN)
def test_it_is_xxh64(data: bytes) -> None:
    assert digest(data) == KNOWN[data]


def test_every_length_and_alignment() -> None:
    room = bytearray(400)
    for length in range(301):
        found = set()
        for at in range(9):
            room[at : at + length] = BYTES[:length]
            found.add(digest(memoryview(room)[at : at + length]))
        assert found == {digest(BYTES[:length])}
    assert len({digest(BYTES[:length]) for length in range(301)}) == 301


def test_pieces_are_as_good_as_the_whole() -> None:
    for one in range(0, 100, 3):
        for two in range(one, 101, 7):
            assert digest(BYTES[:one], BYTES[one:two], b"", BYTES[two:100]) == digest(BYTES[:100])


@pytest.mark.parametrize("length", [1, 4, 8, 31, 32, 33, 64, 95, 300])
def test_each_bit_changes_half_of_the_digest(length: int) -> None:
    before, changed = digest(BYTES[:length]), []
    for bit in range(8 * length):
        data = bytearray(BYTES[:length])
        data[bit // 8] ^= 1 << bit % 8
        changed.append(digest(data) ^ before)
    share = np.array([[each >> i & 1 for i in range(64)] for each in changed]).mean(0)
    assert all(changed) and len(set(changed)) == 8 * length
    assert abs(share.mean() - 0.5) < 0.1 / length**0.5
    assert np.abs(share - 0.5).max() < 2.0 / length**0.5 or length < 16


def test_words_that_change_places() -> None:
    words = np.frombuffer(BYTES[:256], np.uint64)
    found = {digest(words)}
    for one in range(32):
        for two in range(one):
            other = words.copy()
            other[[one, two]] = words[[two, one]]
            found.add(digest(other))
    assert len(found) == 1 + 32 * 31 // 2


def test_runs_of_zeros_and_signs_that_flip() -> None:
    assert len({digest(bytes(length)) for length in range(3000)}) == 3000
    zeros = np.zeros(1000)
    found = {digest(zeros)}
    for step in (1, 2, 4, 5, 8):
        for first in range(64):
            other = zeros.copy()
            other[first : first + 8 * step : step] = -0.0
            found.add(digest(other))
    assert len(found) == 1 + 5 * 64


def test_many_that_are_nearly_alike() -> None:
    x = np.zeros((20000, 5), np.uint32)
    x[:, 3] = np.arange(20000)
    found = np.array([digest(row) for row in x], np.uint64)
    for part in (found >> np.uint64(32), found & np.uint64(0xFFFFFFFF)):
        assert len(np.unique(part)) > 19990, "halves of it tell apart, too"


def test_memory_that_is_not_contiguous_is_refused() -> None:
    with pytest.raises((ValueError, BufferError)):
        digest(np.zeros((4, 4))[:, ::2])
    assert digest(np.zeros(0)) == digest(b"") != digest(b"\0")


def test_others_run_meanwhile() -> None:
    x, seen = np.ones(1 << 22), []
    threads = [threading.Thread(target=lambda: seen.append(digest(x))) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert set(seen) == {digest(x)} and len(seen) == 3


def test_training_has_53_bits_of_it() -> None:
    """They go into rows of float64."""
    x = np.arange(300.0)
    assert of_arrays(x) == digest(x) & (2**53 - 1) == int(float(of_arrays(x)))
    assert blocks.digests({"x": x})[0] == of_arrays(x)
