"""Communication by the marks of the program."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.observe.findings import find
from hocket.observe.layers import BEFORE, LayerCalls, layers
from hocket.observe.page.make import page
from hocket.observe.timeline import Timeline, Track, slices

GROUPS = ["marks", "calls", "queue", "waits"]
TRACKS = [Track(rank, group, False, group, "world") for rank in range(2) for group in GROUPS]
NAMES = ["forward", "back<b>ward", "allreduce"]


def timeline(*rows: tuple[int, str, int, int, int, int]) -> Timeline:
    """Rows: (rank, group, name, seq, begin, end), in ms."""
    made = slices(len(rows))
    for row, (rank, group, name, seq, begin, end) in zip(made, rows, strict=True):
        row["track"], row["name"], row["seq"] = 4 * rank + GROUPS.index(group), name, seq
        row["begin"], row["end"] = begin * 10**6, end * 10**6
    return Timeline({0: "rank 0", 1: "rank 1"}, TRACKS, NAMES, made)


def test_calls_belong_to_the_mark_before_them() -> None:
    made = timeline(
        (0, "calls", 2, 1, 0, 5), (0, "marks", 0, 0, 10, 10), (0, "calls", 2, 2, 11, 21), (0, "waits", 2, 2, 12, 15),
        (0, "marks", 1, 0, 30, 30), (0, "calls", 2, 3, 31, 61), (0, "queue", 2, 3, 29, 31), (0, "calls", 2, 4, 70, 90),
        (0, "marks", 0, 0, 100, 100), (0, "calls", 2, 5, 100, 102),
        (1, "marks", 1, 0, 0, 0), (1, "calls", 2, 3, 12, 13), (1, "waits", 2, 3, 12, 13),
    )  # fmt: skip
    found = layers(made)
    assert [layer.name for layer in found] == ["back<b>ward", "forward", BEFORE], "the largest exposed part first"
    assert found == [
        LayerCalls("back<b>ward", 3, pytest.approx(0.021), pytest.approx(0.03), pytest.approx(0.001)),
        LayerCalls("forward", 2, pytest.approx(0.012), 0.0, pytest.approx(0.003)),
        LayerCalls(BEFORE, 1, pytest.approx(0.005), 0.0, 0.0),
    ], "a rank's marks are its own, and so is what it queued"
    text = page(find(made))
    assert "back&lt;b&gt;ward" in text and "<b>ward" not in text and "By the program" in text


def test_without_marks_there_is_nothing_to_say() -> None:
    made = timeline((0, "calls", 2, 1, 0, 5))
    assert layers(made) == [] and "By the program" not in page(find(made))
    assert layers(Timeline({}, [], [], np.copy(slices(0)))) == []
