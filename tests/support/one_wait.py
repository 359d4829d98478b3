"""A trace with one wait and one message, by hand."""

from __future__ import annotations

import numpy as np

from hocket.observe.timeline import Timeline, Track, slices

TRACKS = [
    Track(0, "to 1", False, "sends", "world"), Track(1, "from 0", False, "receives", "world"),
    Track(1, "waits", False, "waits", "world"),
]  # fmt: skip


def timeline(wait: int, message: int) -> Timeline:
    """Rank 1 waits in one call, from 100 to 200 ms; a message of another call, or the same, is under way until 300."""
    made = slices(3)
    made["track"], made["peer"], made["bytes"] = [0, 1, 2], [1, 0, 0], 1000
    made["begin"] = np.array([180, 100, 100]) * 10**6
    made["end"] = np.array([290, 300, 200]) * 10**6
    made["seq"], made["flow"], made["step"] = [message, message, wait], [1, 1, 0], 0
    ranks = {str(rank): {"clock": 0, "host": "a", "clock_error_us": 0.0} for rank in range(2)}
    return Timeline({0: "rank 0", 1: "rank 1"}, TRACKS, ["x"], made, about={"ranks": ranks})
