"""Which CPU this is."""

from __future__ import annotations

import functools


@functools.cache
def maker() -> str:
    """The maker, by its own word: "GenuineIntel", "AuthenticAMD"; "" if it does not say."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.split(":")[1].strip() for line in file if line.startswith("vendor_id")), "")
    except OSError:
        return ""
