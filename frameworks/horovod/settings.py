"""Horovod's variables, as its users set them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hocket.errors import ArgumentError


@dataclass(frozen=True)
class Settings:
    """The settings of the environment."""

    fusion_threshold: int = 128 << 20
    """Bytes of small tensors that are carried out as one, at most; 0: each by itself."""
    cycle_time: float = 1.0
    """Milliseconds in which submitted tensors are collected before rank 0 is told, unless somebody waits for one."""
    stall_check: float = 60.0
    """Seconds after which rank 0 warns of tensors that some ranks have not submitted; 0: never."""
    stall_shutdown: float = 0.0
    """Seconds after which they fail; 0: never."""
    timeline: str = ""
    """The file of the timeline; DYNAMIC: none before hvd.start_timeline()."""
    timeline_cycles: bool = False
    """Does the timeline mark the moments in which rank 0 is told of tensors?"""


NAMES = {
    "fusion_threshold": ("HOCKET_FUSION_THRESHOLD", "HOROVOD_FUSION_THRESHOLD"),
    "cycle_time": ("HOROVOD_CYCLE_TIME",),
    "stall_check": ("HOROVOD_STALL_CHECK_TIME_SECONDS",),
    "stall_shutdown": ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",),
    "timeline": ("HOROVOD_TIMELINE",),
    "timeline_cycles": ("HOROVOD_TIMELINE_MARK_CYCLES",),
}
"""By field: its variables; the first that is set counts."""


def read() -> Settings:
    """Read the settings of the environment.  ArgumentError for what is not a number."""
    found: dict[str, object] = {}
    for field, names in NAMES.items():
        name = next((each for each in names if os.environ.get(each)), None)
        if name is not None:
            found[field] = _value(name, os.environ[name], type(getattr(Settings, field)))
    if os.environ.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0"):
        found["stall_check"] = 0.0
    return Settings(**found)  # type: ignore[arg-type]


def _value(name: str, text: str, kind: type) -> object:
    if kind is str:
        return text
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if number < 0:
        raise ArgumentError(f"{name} is {text!r}; it must be a number, 0 or more")
    return number if kind is float else kind(number)
