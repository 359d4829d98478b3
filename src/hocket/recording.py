"""The latest events of ranks, for what stands on hocket: `comm.recorder()` gives it, and `read` takes it from a file.

`hocket.observe` makes traces and reports of it.
"""

from hocket.collectives.recording.door import Recorder
from hocket.collectives.recording.records import (
    NOBODY,
    RECORD,
    SPAN,
    Facts,
    Kind,
    Link,
    NotARecording,
    Part,
    Recorded,
    Ring,
    What,
    read,
)
from hocket.collectives.recording.spans import AsData, GradientSpan, HealedSpan, understood, written
from hocket.collectives.recording.standing import Standing, standings

__all__ = [
    "NOBODY", "RECORD", "SPAN", "AsData", "Facts", "GradientSpan", "HealedSpan", "Kind", "Link", "NotARecording",
    "Part", "Recorded", "Recorder", "Ring", "Standing", "What", "read", "standings", "understood", "written",
]  # fmt: skip
